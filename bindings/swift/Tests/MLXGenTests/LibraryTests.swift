import Foundation
import Testing

@testable import MLXGen

@Suite struct LibraryTests {
    @Test func tellsItsVersion() throws {
        let info = try Library.buildInfo()
        #expect(info.version == Library.version)
        #expect(info.abi == Library.abiVersion)
        #expect(Library.abiVersion == 1)
        #expect(!info.backend.isEmpty)
        #expect(info.features.allSatisfy(Library.hasFeature))
        #expect(!Library.hasFeature("no such feature"))
    }

    @Test func namesItsCodes() {
        #expect("\(MLXGenError.Code.notFound)" == "MLXGEN_NOT_FOUND")
        #expect("\(MLXGenError.Code(rawValue: 9999))" == "MLXGEN_UNKNOWN")
    }

    @Test func limitsAreClampedToWhatTheLibraryTakes() {
        #expect(Duration.seconds(2).libraryMilliseconds == 2000)
        #expect(Duration.milliseconds(-1).libraryMilliseconds == 0)
        #expect(Duration.seconds(1_000_000_000).libraryMilliseconds == .max)
    }

    @Test func valuesThatCNeverTakesAreRefusedWithTheirName() async throws {
        let engine = try Engine()
        let error = try await libraryError { try await engine.setLimits(memory: -1) }
        #expect(error.code == .invalidArgument)
        #expect(error.detail.field == "memory_limit")
        #expect(throws: MLXGenError.self) { try Engine(.init(threads: -4)) }
        #expect(throws: MLXGenError.self) { try Engine(.init(threads: .max)) }
    }

    @Test func memoryLimitsAreReadBack() async throws {
        let engine = try Engine(.init(memoryLimit: 64 << 20, poolLimit: 1 << 20))
        #expect(try engine.memory().limit == 64 << 20)
        try await engine.setLimits(memory: 32 << 20, pool: 2 << 20)
        let memory = try engine.memory()
        #expect(memory.limit == 32 << 20)
        #expect(memory.poolLimit == 2 << 20)
        #expect(try await engine.trim() >= 0)
    }

    @Test func signalsAreKeptForTheNextWait() async {
        let signal = Signal()
        signal.raise()
        await signal.wait()
        async let later: Void = signal.wait()
        try? await Task.sleep(for: .milliseconds(5))
        signal.raise()
        await later
    }

    /// The handler is let go of exactly when another takes its place.
    @Test func logHandlersAreReplaced() throws {
        weak var held: Locked<[String]>?
        do {
            let lines = Locked<[String]>([])
            held = lines
            try Library.setLogHandler(maximum: .trace) { level, line in
                lines.withLock { $0.append("\(level): \(line)") }
            }
        }
        #expect(held != nil)
        try Library.setLogHandler(nil)
        #expect(held == nil)
    }
}
