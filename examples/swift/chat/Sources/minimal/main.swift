import Foundation
import MLXGen

let model = try await loadModel(from: URL(fileURLWithPath: CommandLine.arguments[1]))
let session = ChatSession(model)
for try await text in session.streamResponse(to: "What is the capital of France?") {
    print(text, terminator: "")
}
print()
