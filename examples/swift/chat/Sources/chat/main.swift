// chat MODEL PROMPT: streams an answer to standard output.
// MODEL is a folder (safetensors) or a .gguf file. -v tells on standard error what it took.
import Foundation
import MLXGen

var arguments = Array(CommandLine.arguments.dropFirst())
let isVerbose = arguments.first == "-v"
if isVerbose { arguments.removeFirst() }
guard arguments.count == 2 else {
    report("usage: chat [-v] MODEL PROMPT")
    exit(2)
}

func report(_ line: String) {
    FileHandle.standardError.write(Data("\(line)\n".utf8))
}

do {
    let model = try await loadModel(from: URL(fileURLWithPath: arguments[0]))
    let session = ChatSession(model, generateParameters: .init(maxTokens: 512))
    for try await event in session.streamDetails(to: arguments[1]) {
        switch event {
        case .prefill(let prefill):
            if isVerbose { report("prefill \(prefill.done)/\(prefill.total)") }
        case .text(let chunk):
            FileHandle.standardOutput.write(Data(chunk.text.utf8))
        case .end(let info):
            FileHandle.standardOutput.write(Data("\n".utf8))
            if isVerbose {
                report("\(info.generationTokenCount) tokens, \(info.tokensPerSecond) a second")
            }
        }
    }
} catch {
    report("chat: \(error)")
    exit(1)
}
