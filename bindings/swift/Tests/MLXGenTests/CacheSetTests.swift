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

    @Test func optionsAreRefusedByName() async throws {
        let model = try await FakeModel.endless()
        func field(
            _ precision: CacheSet.KVPrecision? = nil, window: CacheSet.KVWindow? = nil,
            pages: CacheSet.KVPages? = nil
        ) async throws -> String? {
            try await libraryError {
                _ = try await CacheSet(model, precision: precision, window: window, pages: pages)
            }.detail.field
        }
        #expect(try await field(.affine(bits: 7)) == "kv_bits")
        #expect(try await field(.affine(bits: -1)) == "kv_bits")
        #expect(try await field(.affine(bits: 4, group: 48)) == "kv_group")
        #expect(try await field(.affine(bits: 4, start: -5)) == "kv_start")
        #expect(try await field(.table("[{\"layer_idx\": 0, \"bits\": 3}]")) == "kv_config")
        #expect(try await field(.turboQuant(keyBits: 3)) == "turboquant_key_bits")
        #expect(try await field(.turboQuant(valueBits: 7)) == "turboquant_value_bits")
        #expect(try await field(window: .init(tokens: -1)) == "window")
        #expect(try await field(pages: .init(tokens: -1)) == "page_tokens")
        let cache = try await CacheSet(
            model, precision: .table("[]", start: 3), window: .init(tokens: 9), pages: nil)
        #expect(try cache.tokenCount == 0)
    }

    @Test func embeddingsStandInThePlaceOfTokens() async throws {
        let model = try await FakeModel.saying("ab")
        let width = model.info.hiddenSize
        let rows = PromptPart.embeddings(
            (0..<2 * width).map { Float($0) }, width: width, key: Array("picture".utf8))
        let cache = try await CacheSet(model)
        try await cache.append(parts: [.tokens([1, 2]), rows, .tokens([3])])
        #expect(try cache.tokens() == [1, 2, .max, .max, 3])
        var reused: [Int] = []
        for try await event in model.generate(parts: [.tokens([1, 2]), rows, .tokens([4])], cache: cache) {
            if case .prefill(let progress) = event { reused.append(progress.reused) }
        }
        #expect(reused.last == 4)
        let wrong = PromptPart.embeddings([1, 2, 3], width: 2, key: [1])
        #expect(
            try await libraryError { try await cache.append(parts: [wrong]) }.detail.field == "embeddings")
        let narrow = PromptPart.embeddings([1, 2], width: 1, key: [1])
        #expect(try await libraryError { try await cache.append(parts: [narrow]) }.code == .invalidArgument)
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
