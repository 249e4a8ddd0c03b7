import Foundation
import Testing

@testable import MLXGen

@Suite(.enabled(if: libraryIsFake), .timeLimit(.minutes(1)))
struct ChatSessionTests {
    @Test func answersAndRemembers() async throws {
        let session = ChatSession(try await FakeModel.saying("Paris."), instructions: "Be brief.")
        #expect(try await session.respond(to: "What is the capital of France?") == "Paris.")
        #expect(try await session.respond(to: "Say it again.") == "Paris.")
        #expect(
            session.messages == [
                .user("What is the capital of France?"), .assistant("Paris."),
                .user("Say it again."), .assistant("Paris."),
            ])
    }

    @Test func streamsPieces() async throws {
        let session = ChatSession(try await FakeModel.saying("Grüße!"))
        let pieces = try await session.streamResponse(to: "hello").collected()
        #expect(pieces.joined() == "Grüße!")
        #expect(pieces.count > 1)
        #expect(pieces.allSatisfy { !$0.isEmpty })
    }

    @Test func laterTurnsReuseTheCache() async throws {
        let session = ChatSession(try await FakeModel.saying("yes"))
        _ = try await session.respond(to: "one")
        let info = try await session.streamDetails(to: "two").collected().last?.info
        #expect(try #require(info).reusedTokenCount > 0)
        try session.clear()
        let fresh = try await session.streamDetails(to: "two").collected().last?.info
        #expect(fresh?.reusedTokenCount == 0)
        #expect(session.messages == [.user("two"), .assistant("yes")])
    }

    @Test func oneTurnAtATime() async throws {
        let session = ChatSession(try await FakeModel.endless())
        var first = session.streamDetails(to: "one").makeAsyncIterator()
        _ = try await first.next()
        #expect(try await libraryError { _ = try await session.respond(to: "two") }.code == .busy)
        #expect(throws: MLXGenError.self) { try session.clear() }
        #expect(try await first.next() != nil)
    }

    @Test func leavingALoopEndsTheTurn() async throws {
        let session = ChatSession(try await FakeModel.endless())
        var heard = ""
        for try await piece in session.streamResponse(to: "one") {
            heard += piece
            if heard.utf8.count >= 5 { break }
        }
        session.generateParameters.maxTokens = 3
        _ = try await session.respond(to: "two")
        #expect(session.messages.count == 4)
        #expect(session.messages[1] == .assistant(heard))
    }

    @Test func aCancelledAnswerIsKeptAsFarAsItCame() async throws {
        let session = ChatSession(try await FakeModel.endless())
        let started = Signal()
        let task = Task {
            for try await _ in session.streamResponse(to: "one") { started.raise() }
        }
        await started.wait()
        task.cancel()
        try await task.value
        #expect(session.messages.count == 2)
        #expect(session.messages.last?.role == .assistant)

        let respond = Task { try await session.respond(to: "two") }
        try await Task.sleep(for: .milliseconds(30))
        respond.cancel()
        await #expect(throws: CancellationError.self) { _ = try await respond.value }
        session.generateParameters.maxTokens = 2
        _ = try await session.respond(to: "three")
    }

    @Test func aFailedTurnLeavesNothing() async throws {
        let fake = try FakeModel([
            "script": ["text": "abc"], "faults": [["at": "read", "after": 1, "count": 1, "code": 8]],
        ])
        let session = ChatSession(try await fake.load())
        let error = try await libraryError { _ = try await session.respond(to: "one") }
        #expect(error.code == .outOfMemory)
        #expect(session.messages.isEmpty)
        #expect(try await session.respond(to: "one") == "abc")
    }

    @Test func templateOptionsReachTheTemplate() async throws {
        let tokenizer = try #require(try await FakeModel.saying("x").tokenizer)
        let messages: [Chat.Message] = [.system("S"), .user("U \"quoted\" \u{1F389}")]
        let text = try tokenizer.chatText(messages: messages)
        #expect(text.contains("U \"quoted\" \u{1F389}"))
        let bare = try tokenizer.chatText(messages: messages, options: .init(addGenerationPrompt: false))
        #expect(text.hasPrefix(bare) && text != bare)
        let tokens = try tokenizer.applyChatTemplate(messages: messages)
        #expect(try tokenizer.decode(tokens: tokens) == text)
        let error = try await libraryError {
            _ = try tokenizer.applyChatTemplate(messages: messages, options: .init(toolsJSON: "{"))
        }
        #expect(error.code == .invalidArgument)
    }
}
