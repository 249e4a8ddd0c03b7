import Testing

@testable import MLXGen

@Suite(.enabled(if: libraryIsFake), .timeLimit(.minutes(1)))
struct CacheSetTests {
    @Test func holdsWhatIsAppended() async throws {
        let model = try await FakeModel.endless()
        let cache = try await CacheSet(model, capacity: 100)
        #expect(try cache.tokenCount == 0)
        try await cache.append([5, 6, 7])
        try await cache.append([8])
        #expect(try cache.tokens() == [5, 6, 7, 8])
        #expect(try await cache.logits().count == model.info.vocabularySize)
        let info = try cache.info()
        #expect(info.tokens == 4)
        #expect(info.capacity == 100)
        #expect(info.trimmable)
        #expect(info.layers.count == model.info.layers)
        #expect(info.layers.allSatisfy { $0.offset == 4 && $0.trimmable })
    }

    @Test func forksAreIndependent() async throws {
        let model = try await FakeModel.endless()
        let cache = try await CacheSet(model)
        try await cache.append([1, 2, 3])
        let fork = try await cache.fork()
        try await fork.append([4])
        #expect(try await fork.truncate(to: 1) == 3)
        #expect(try cache.tokens() == [1, 2, 3])
        #expect(try fork.tokens() == [1])
    }

    @Test func faultsAreErrors() async throws {
        let model = try await FakeModel.endless()
        let cache = try await CacheSet(model, capacity: 4)
        #expect(try await libraryError { _ = try await cache.logits() }.code == .wrongState)
        #expect(try await libraryError { try await cache.append([]) }.code == .invalidArgument)
        #expect(try await libraryError { try await cache.append([1, 2, 3, 4, 5]) }.code == .contextFull)
        #expect(try await libraryError { try await cache.truncate(to: -1) }.detail.field == "keep")
        #expect(try cache.tokenCount == 0)
    }

    @Test func aLentSetIsBusy() async throws {
        let model = try await FakeModel.endless()
        let cache = try await CacheSet(model)
        var iterator = model.generate(prompt: [1, 2], cache: cache).makeAsyncIterator()
        _ = try await iterator.next()
        #expect(try await libraryError { try await cache.append([1]) }.code == .busy)
        #expect(try await libraryError { _ = try await cache.fork() }.code == .busy)
        let second = model.generate(prompt: [1, 2], cache: cache)
        #expect(try await libraryError { _ = try await second.collected() }.code == .busy)
        // Getters answer all the same.
        #expect(try cache.info().capacity == model.info.contextLimit)
    }

    @Test func prefixesAreReused() async throws {
        let model = try await FakeModel.saying("ab")
        let cache = try await CacheSet(model)
        try await cache.append([1, 2, 3])
        let events = try await model.generate(prompt: [1, 2, 3, 4, 5], cache: cache).collected()
        let info = try #require(events.last?.info)
        #expect(info.reusedTokenCount == 3)
        let other = try await model.generate(prompt: [1, 9], cache: cache).collected()
        guard case .prefill(let prefill) = other.first else {
            Issue.record("no prefill event first")
            return
        }
        #expect(prefill.reused == 1)
        #expect(prefill.reuseStop == .diverged)
    }

    @Test func cancellingTheTaskStopsAnAppend() async throws {
        let fake = try FakeModel(["prefill_micros_per_token": 2000, "prefill_chunk": 16])
        let model = try await fake.load()
        let cache = try await CacheSet(model)
        let task = Task { try await cache.append([TokenID](repeating: 1, count: 2000)) }
        while try cache.tokenCount < 16 { try await Task.sleep(for: .milliseconds(1)) }
        task.cancel()
        await #expect(throws: CancellationError.self) { try await task.value }
        // Whole chunks, and usable.
        let count = try cache.tokenCount
        #expect(count % 16 == 0 && count < 2000)
        try await cache.append([2])
        #expect(try cache.tokenCount == count + 1)
    }
}
