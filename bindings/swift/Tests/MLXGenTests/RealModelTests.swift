import Foundation
import Testing

@testable import MLXGen

/// A folder or file of a real model; without one these tests are skipped.
private let realModel = ProcessInfo.processInfo.environment["MLXGEN_SMOLLM2"]

@Suite(.enabled(if: realModel != nil && !libraryIsFake), .serialized)
struct RealModelTests {
    @Test func namesParis() async throws {
        let model = try await loadModel(from: URL(fileURLWithPath: try #require(realModel)))
        let session = ChatSession(model, generateParameters: .init(maxTokens: 40))
        let answer = try await session.respond(to: "What is the capital of France?")
        #expect(answer.contains("Paris"))
        let info = try await session.streamDetails(to: "And of Italy?").collected().last?.info
        #expect(try #require(info).reusedTokenCount > 0)
        #expect(session.messages.count == 4)
    }
}
