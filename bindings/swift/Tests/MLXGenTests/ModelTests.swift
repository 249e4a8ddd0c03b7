import Foundation
import Testing

@testable import MLXGen

@Suite(.enabled(if: libraryIsFake), .timeLimit(.minutes(1)))
struct ModelTests {
    @Test func describesItself() async throws {
        let fake = try FakeModel(["layers": 3, "context_limit": 1000, "eos": [257]])
        let model = try await fake.load(options: .init(contextLimit: 900))
        #expect(model.info.format == "fake")
        #expect(model.info.layers == 3)
        #expect(model.info.contextLimit == 900)
        #expect(model.info.endTokens == [257])
        #expect(model.info.vocabularySize == 260)
    }

    @Test func missingFilesAreNamed() async throws {
        let url = URL(fileURLWithPath: "/no/such/model")
        let error = try await libraryError { _ = try await loadModel(from: url) }
        #expect(error.code == .notFound)
        #expect(error.detail.file?.hasPrefix("/no/such/model") == true)
        #expect(error.message.contains("/no/such/model"))
        #expect("\(error)".hasPrefix("MLXGEN_NOT_FOUND: "))
        #expect(error.localizedDescription == error.message)
    }

    @Test func brokenFilesAreInvalid() async throws {
        let fake = try FakeModel(["no_such_key": 1])
        let error = try await libraryError { _ = try await fake.load() }
        #expect(error.code == .invalidModel)
    }

    @Test func progressRisesToTheEnd() async throws {
        let fake = try FakeModel(["weight_bytes": 1 << 20, "piece_bytes": 64 << 10])
        let reports = Locked<[Model.LoadProgress]>([])
        _ = try await fake.load { report in
            reports.withLock { $0.append(report) }
        }
        let weights = reports.withLock { $0 }.filter { $0.phase == .weights }
        #expect(weights.count > 2)
        #expect(weights.map(\.done) == weights.map(\.done).sorted())
        #expect(weights.last?.fractionCompleted == 1)
    }

    @Test func cancellingTheTaskStopsALoad() async throws {
        let fake = try FakeModel([
            "weight_bytes": 64 << 20, "piece_bytes": 16 << 10, "piece_micros": 20_000,
        ])
        let begun = Signal()
        let task = Task {
            try await fake.load { report in
                if report.phase == .weights { begun.raise() }
            }
        }
        await begun.wait()
        let start = ContinuousClock.now
        task.cancel()
        await #expect(throws: CancellationError.self) { _ = try await task.value }
        // The whole load would take more than a minute.
        #expect(ContinuousClock.now - start < .seconds(20))
    }

    @Test func memoryLimitIsChecked() async throws {
        let fake = try FakeModel(["weight_bytes": 8 << 20])
        let engine = try Engine(.init(memoryLimit: 1 << 20))
        let error = try await libraryError { _ = try await fake.load(engine: engine) }
        #expect(error.code == .outOfMemory)
        try await engine.setLimits(memory: 64 << 20)
        let model = try await fake.load(engine: engine)
        #expect(try engine.memory().models >= 8 << 20)
        withExtendedLifetime(model) {}
    }

    @Test func estimatesTellTheGreatestContext() async throws {
        let fake = try FakeModel([
            "weight_bytes": 100_000, "context_limit": 1000, "prefill_chunk": 64, "cache_bytes_per_token": 100,
            "workspace_bytes_per_token": 10,
        ])
        let all = try await MemoryEstimate.of(fake.folder)
        #expect(all.weightBytes == 100_000 && all.context == 1000 && all.fits)
        #expect(all.cacheBytes == 100_000 && all.workspaceBytes == 640 && all.totalBytes == 200_640)
        let engine = try Engine(.init(memoryLimit: 160_640))
        #expect(try await MemoryEstimate.of(fake.folder, engine: engine).maxContext == 600)
        #expect(try await MemoryEstimate.of(fake.folder, context: 601, budget: 160_640).fits == false)
        #expect(try await MemoryEstimate.of(fake.folder, capacity: 40).maxContext == 40)
        let error = try await libraryError { _ = try await MemoryEstimate.of(fake.folder, kvType: .float32) }
        #expect(error.code == .unsupported)
    }

    @Test func tokensBecomeTextAgain() async throws {
        let model = try await FakeModel.saying("x")
        let tokenizer = try #require(model.tokenizer)
        let text = "Grüße \"an\" 日本\n🎉"
        let tokens = try tokenizer.encode(text: text, addSpecialTokens: false)
        #expect(tokens == text.utf8.map(TokenID.init))
        #expect(try tokenizer.decode(tokens: tokens) == text)
        #expect(try tokenizer.decode(tokens: []) == "")
        let error = try await libraryError { _ = try tokenizer.decode(tokens: [65, 1_000_000]) }
        #expect(error.code == .invalidArgument)
        #expect(error.detail.position == 1)
    }

    @Test func aModelMayLackATokenizer() async throws {
        let fake = try FakeModel(["tokenizer": false])
        let model = try await fake.load()
        #expect(model.tokenizer == nil)
        let error = try await libraryError { _ = try await ChatSession(model).respond(to: "hi") }
        #expect(error.code == .notFound)
    }
}
