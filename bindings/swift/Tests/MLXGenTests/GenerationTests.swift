import Foundation
import Testing

@testable import MLXGen

@Suite(.enabled(if: libraryIsFake), .timeLimit(.minutes(1)))
struct GenerationTests {
    let prompt: [TokenID] = [1, 2, 3, 4]

    @Test func eventsComeInOrder() async throws {
        let model = try await FakeModel.saying("Grüße, 日本 🎉")
        let events = try await model.generate(prompt: prompt).collected()
        guard case .prefill(let prefill) = events.first else {
            Issue.record("no prefill event first")
            return
        }
        #expect(prefill.total == prompt.count)
        #expect(prefill.reused == 0)
        #expect(prefill.reuseStop == .nothingCached)
        #expect(events.compactMap(\.chunk).joined() == "Grüße, 日本 🎉")
        let info = try #require(events.last?.info)
        #expect(events.compactMap(\.info).count == 1)
        #expect(info.stopReason == .endOfSequence)
        #expect(info.promptTokenCount == prompt.count)
        #expect(info.generationTokenCount == "Grüße, 日本 🎉".utf8.count + 1)
        #expect(info.firstTokenTime >= 0)
    }

    @Test func maximumIsExact() async throws {
        let model = try await FakeModel.endless(stepMicroseconds: 0)
        let info = try await model.generate(prompt: prompt, parameters: .init(maxTokens: 7)).collected().last?
            .info
        #expect(info?.stopReason == .maxTokens)
        #expect(info?.generationTokenCount == 7)
    }

    @Test func stopTextsEndIt() async throws {
        let model = try await FakeModel.saying("one two three four")
        let parameters = GenerateParameters(stop: ["absent", "three"])
        let events = try await model.generate(prompt: prompt, parameters: parameters).collected()
        #expect(events.compactMap(\.chunk).joined() == "one two ")
        #expect(events.last?.info?.stopReason == .stopString("three"))
    }

    @Test func extraEndTokensEndIt() async throws {
        let model = try await FakeModel.saying("ab!cd")
        let parameters = GenerateParameters(extraEndTokens: [TokenID(UInt8(ascii: "!"))])
        let events = try await model.generate(prompt: prompt, parameters: parameters).collected()
        #expect(events.compactMap(\.chunk).joined() == "ab")
        #expect(events.last?.info?.stopReason == .endOfSequence)
    }

    @Test func logprobsBelongToTheirTokens() async throws {
        let model = try await FakeModel.saying("abc")
        let parameters = GenerateParameters(logprobs: true, topLogprobs: 3)
        let events = try await model.generate(prompt: prompt, parameters: parameters).collected()
        var count = 0
        for case .text(let chunk) in events {
            #expect(chunk.logprobs.count == chunk.tokens.count)
            for (token, logprob) in zip(chunk.tokens, chunk.logprobs) {
                count += 1
                #expect(logprob.top.count == 3)
                #expect(logprob.top.map(\.logprob) == logprob.top.map(\.logprob).sorted(by: >))
                // Greedy: the chosen token is the likeliest.
                #expect(logprob.top.first?.token == token)
                #expect(logprob.top.first?.logprob == logprob.chosen)
            }
        }
        #expect(count >= 3)
    }

    @Test func theSameSeedGivesTheSameTokens() async throws {
        let model = try await FakeModel.endless(stepMicroseconds: 0)
        func tokens(seed: UInt64) async throws -> [TokenID] {
            let parameters = GenerateParameters(
                maxTokens: 40, temperature: 1, topP: 0.9, topK: 50, seed: seed)
            let events = try await model.generate(prompt: prompt, parameters: parameters).collected()
            return events.flatMap { event -> [TokenID] in
                if case .text(let chunk) = event { chunk.tokens } else { [] }
            }
        }
        let first = try await tokens(seed: 1)
        #expect(first.count == 40)
        #expect(try await tokens(seed: 1) == first)
        #expect(try await tokens(seed: 2) != first)
    }

    @Test func badRequestsThrow() async throws {
        let model = try await FakeModel.saying("x")
        let empty = try await libraryError { _ = try await model.generate(prompt: []).collected() }
        #expect(empty.code == .invalidArgument)
        let unknown = try await libraryError {
            _ = try await model.generate(prompt: [1, 2, 1_000_000]).collected()
        }
        #expect(unknown.code == .invalidArgument)
        #expect(unknown.detail.field == "tokens")
        #expect(unknown.detail.position == 2)
        let cold = try await libraryError {
            _ = try await model.generate(prompt: prompt, parameters: .init(temperature: -1)).collected()
        }
        #expect(cold.detail.field == "temperature")
        let long = try await libraryError {
            _ = try await model.generate(prompt: [TokenID](repeating: 1, count: 5000)).collected()
        }
        #expect(long.code == .contextFull)
    }

    /// A failed step is an error, never an end; afterwards the stream is over.
    @Test func errorsAreThrownOnce() async throws {
        let fake = try FakeModel([
            "script": ["text": "abcdef"], "faults": [["at": "read", "after": 3, "code": 8]],
        ])
        let model = try await fake.load()
        var iterator = model.generate(prompt: prompt).makeAsyncIterator()
        let error = try await libraryError {
            while let event = try await iterator.next() { #expect(event.info == nil) }
        }
        #expect(error.code == .outOfMemory)
        #expect(try await iterator.next() == nil)
    }

    @Test func cancellingTheTaskEndsIt() async throws {
        let model = try await FakeModel.endless()
        let cache = try await CacheSet(model)
        let task = Task {
            try await model.generate(prompt: prompt, cache: cache).collected()
        }
        while try cache.tokenCount < 50 { try await Task.sleep(for: .milliseconds(1)) }
        task.cancel()
        _ = await task.result
        // The next call waits until the cache set is free; it holds what was computed.
        let kept = try await cache.fork().tokenCount
        #expect(kept >= 50)
        #expect(try cache.tokens().starts(with: prompt))
        #expect(try await cache.truncate(to: 10) == kept - 10)
    }

    @Test func leavingTheLoopEndsIt() async throws {
        let model = try await FakeModel.endless()
        let cache = try await CacheSet(model)
        var texts = 0
        for try await event in model.generate(prompt: prompt, cache: cache) {
            if event.chunk != nil { texts += 1 }
            if texts == 5 { break }
        }
        // Waits for the generation to let go; it would throw `busy` otherwise.
        try await cache.truncate(to: 2)
        #expect(try cache.tokenCount == 2)
    }

    @Test func twoReadersOfOneStreamDoNotMix() async throws {
        let model = try await FakeModel.endless(stepMicroseconds: 50_000)
        let generator = Generator(model: model, cache: nil, prompt: [.tokens(prompt)], parameters: .init())
        let results = await withTaskGroup(of: Result<Generation?, any Error>.self) { group in
            for _ in 0..<2 {
                group.addTask {
                    do {
                        // Past the prefill events, into the wait for a token.
                        while let event = try await generator.next() {
                            if event.chunk != nil { return .success(event) }
                        }
                        return .success(nil)
                    } catch {
                        return .failure(error)
                    }
                }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        let errors = results.compactMap { result -> MLXGenError? in
            if case .failure(let error) = result { error as? MLXGenError } else { nil }
        }
        #expect(errors.map(\.code) == [.busy])
    }

    @Test func manyStreamsRunTogether() async throws {
        let model = try await FakeModel.saying("done", stepMicroseconds: 500)
        let answers = try await withThrowingTaskGroup(of: String.self) { group in
            for _ in 0..<64 {
                group.addTask {
                    try await model.generate(prompt: prompt).collected().compactMap(\.chunk).joined()
                }
            }
            return try await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers == [String](repeating: "done", count: 64))
    }

    /// Suspended generations go on where they were. Their readers hold no thread: there are more of
    /// them here than Swift has threads, and this test goes on while they all wait.
    @Test func suspensionPausesAndGoesOn() async throws {
        let model = try await FakeModel.endless(stepMicroseconds: 0)
        let readers = 2 * ProcessInfo.processInfo.activeProcessorCount + 8
        var caches: [CacheSet] = []
        for _ in 0..<readers { caches.append(try await CacheSet(model)) }
        try await withThrowingTaskGroup(of: Int.self) { group in
            for cache in caches {
                group.addTask {
                    let parameters = GenerateParameters(maxTokens: 400)
                    let events = try await model.generate(
                        prompt: prompt, cache: cache, parameters: parameters
                    ).collected()
                    return events.last?.info?.generationTokenCount ?? 0
                }
            }
            while try caches.contains(where: { try $0.tokenCount <= prompt.count }) {
                try await Task.sleep(for: .milliseconds(1))
            }
            try await model.engine.suspend()
            let paused = try caches.map { try $0.tokenCount }
            try await Task.sleep(for: .milliseconds(50))
            #expect(try caches.map { try $0.tokenCount } == paused)
            #expect(await Task.detached { true }.value)
            try await model.engine.resume()
            for try await count in group { #expect(count == 400) }
        }
    }

    @Test func cancellingWorksDuringASuspension() async throws {
        let model = try await FakeModel.endless()
        let cache = try await CacheSet(model)
        let task = Task { try await model.generate(prompt: prompt, cache: cache).collected().last }
        while try cache.tokenCount < 20 { try await Task.sleep(for: .milliseconds(1)) }
        try await model.engine.suspend()
        task.cancel()
        _ = try await task.value
        try await model.engine.resume()
        #expect(try await cache.truncate(to: 0) >= 20)
    }

    @Test func cancellingWorksDuringALongPrompt() async throws {
        let model = try await FakeModel(["prefill_micros_per_token": 1000, "context_limit": 100_000]).load()
        let cache = try await CacheSet(model)
        let task = Task {
            let prompt = [TokenID](repeating: 1, count: 60_000)
            return try await model.generate(prompt: prompt, cache: cache).collected().last?.info
        }
        while try cache.tokenCount == 0 { try await Task.sleep(for: .milliseconds(1)) }
        let start = ContinuousClock.now
        task.cancel()
        if let info = try await task.value { #expect(info.stopReason == .cancelled) }
        // The whole prompt would take a minute.
        #expect(ContinuousClock.now - start < .seconds(20))
        #expect(try cache.tokenCount < 60_000)
    }

    @Test func nothingIsLeftBehind() async throws {
        // Other tests run beside this one; a library of its own would be needed for an exact count,
        // so this looks at what one model and its streams leave of their own.
        weak var model: Model?
        weak var cache: CacheSet?
        do {
            let strong = try await FakeModel.saying("abc")
            let set = try await CacheSet(strong)
            (model, cache) = (strong, set)
            _ = try await strong.generate(prompt: prompt, cache: set).collected()
        }
        try await Task.sleep(for: .milliseconds(50))
        #expect(model == nil)
        #expect(cache == nil)
    }
}
