import Foundation
import MLXGen
import Testing

/// Whether the tests run on the library's build without numerics, whose models are small files that
/// say what they answer. `RealModelTests` needs the other build.
let libraryIsFake = Library.hasFeature("fake")

/// A folder with a model of the fake build; removed with the value.
final class FakeModel: Sendable {
    let folder: URL

    /// - Parameter keys: of `fake-model.json`.
    init(_ keys: [String: Any] = [:]) throws {
        folder = FileManager.default.temporaryDirectory.appending(path: "mlxgen-\(UUID())")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        let file = folder.appending(path: "fake-model.json")
        try JSONSerialization.data(withJSONObject: keys).write(to: file)
    }

    deinit {
        try? FileManager.default.removeItem(at: folder)
    }

    func load(
        engine: Engine? = nil, options: Model.Options = .init(),
        progress: (@Sendable (Model.LoadProgress) -> Void)? = nil
    ) async throws -> Model {
        // The folder goes with the last use of self.
        defer { withExtendedLifetime(self) {} }
        return try await Model.load(from: folder, engine: engine, options: options, progress: progress)
    }

    /// A loaded model that answers with `text`.
    static func saying(_ text: String, stepMicroseconds: Int = 0) async throws -> Model {
        try await FakeModel(["script": ["text": text], "step_micros": stepMicroseconds]).load()
    }

    /// A loaded model that never ends by itself: its context limit, or its reader, must end it.
    static func endless(stepMicroseconds: Int = 200) async throws -> Model {
        try await FakeModel(["step_micros": stepMicroseconds, "context_limit": 1_000_000]).load()
    }
}

extension AsyncThrowingStream {
    func collected() async throws -> [Element] {
        var all: [Element] = []
        for try await element in self { all.append(element) }
        return all
    }
}

/// The error that a piece of work throws.
func libraryError(_ work: () async throws -> Void) async throws -> MLXGenError {
    do {
        try await work()
    } catch let error as MLXGenError {
        return error
    }
    throw NothingThrown()
}

struct NothingThrown: Error {}
