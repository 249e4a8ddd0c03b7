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

    /// A loaded model that answers with `text`.
    static func saying(_ text: String, stepMicroseconds: Int = 0) async throws -> Model {
        let keys: [String: Any] = ["script": ["text": text], "step_micros": stepMicroseconds]
        return try await Model.load(from: FakeModel(keys).folder)
    }

    /// A loaded model that never ends by itself: `contextLimit` tokens, or its reader, must end it.
    static func endless(stepMicroseconds: Int = 200, contextLimit: Int = 1_000_000) async throws -> Model {
        let keys: [String: Any] = ["step_micros": stepMicroseconds, "context_limit": contextLimit]
        return try await Model.load(from: FakeModel(keys).folder)
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
