import CMLXGen
import Dispatch

/// A budget of memory on which models are loaded and run.
///
/// One is enough for most programs. It lives as long as anything made from it.
public final class Engine: Sendable {
    let handle: Handle

    /// What computes.
    public enum Device: Int32, Sendable {
        /// The GPU where there is one.
        case automatic = 0
        case cpu, gpu
    }

    /// What an engine may use. Zero means the default in every number.
    public struct Options: Equatable, Sendable {
        /// Bytes that models, caches and work may take together; by default three quarters of the memory.
        public var memoryLimit: Int
        /// Bytes of freed buffers that are kept for reuse. The process has one pool of them: the limit that was
        /// set last holds for all engines.
        public var poolLimit: Int
        /// Threads that compute, at most 1024; by default one for each physical core. The process has one pool
        /// of them: the engine that was made last decides for all.
        public var threads: Int
        /// What computes.
        public var device: Device

        public init(
            memoryLimit: Int = 0, poolLimit: Int = 0, threads: Int = 0, device: Device = .automatic
        ) {
            self.memoryLimit = memoryLimit
            self.poolLimit = poolLimit
            self.threads = threads
            self.device = device
        }
    }

    /// Makes an engine; the models on it share its limits.
    ///
    /// - Throws: ``MLXGenError``: `invalidArgument` for an option without meaning, `unsupported` for a
    ///   device that is not there or a library of another interface version, `wrongState` after
    ///   ``Library/shutdown(within:)``.
    public init(_ options: Options = .init()) throws {
        try Library.checkInterface()
        var plain = mlxgen_engine_options()
        _ = mlxgen_engine_options_init(&plain, MemoryLayout.size(ofValue: plain))
        plain.memory_limit = try unsigned(options.memoryLimit, "memory_limit")
        plain.pool_limit = try unsigned(options.poolLimit, "pool_limit")
        plain.threads = try unsigned(options.threads, "threads")
        plain.device = options.device.rawValue
        handle = try make(mlxgen_engine_release) { mlxgen_engine_new(&plain, $0, $1) }
    }

    /// Bytes, as the engine counts them. Never waits for the engine.
    public struct Memory: Equatable, Sendable {
        /// In use by arrays.
        public let active: Int
        /// Freed and kept for reuse.
        public let pooled: Int
        /// The greatest `active` since the engine was made.
        public let peak: Int
        /// Bytes that models, caches and work may take together.
        public let limit: Int
        /// Bytes of freed buffers that are kept.
        public let poolLimit: Int
        /// What the machine could still give to this process.
        public let available: Int
        /// Weights of this engine's models.
        public let models: Int
        /// Cache sets of this engine.
        public let caches: Int
    }

    /// What is in use now.
    public func memory() throws -> Memory {
        var info = mlxgen_memory_info()
        info.struct_size = MemoryLayout.size(ofValue: info)
        try check { mlxgen_engine_memory(handle.pointer, &info, $0) }
        return Memory(
            active: Int(clamping: info.active), pooled: Int(clamping: info.pooled),
            peak: Int(clamping: info.peak), limit: Int(clamping: info.limit),
            poolLimit: Int(clamping: info.pool_limit), available: Int(clamping: info.available),
            models: Int(clamping: info.models), caches: Int(clamping: info.caches))
    }

    /// Changes the limits, in bytes; 0 is the default. What exceeds a new limit stays until released.
    public func setLimits(memory: Int = 0, pool: Int = 0) async throws {
        let memory: UInt64 = try unsigned(memory, "memory_limit")
        let pool: UInt64 = try unsigned(pool, "pool_limit")
        try await DispatchQueue.engineCalls.offload { [handle] in
            try check { mlxgen_engine_set_limits(handle.pointer, memory, pool, $0) }
        }
    }

    /// Gives pooled memory back to the system.
    ///
    /// - Returns: the bytes given back.
    @discardableResult
    public func trim() async throws -> Int {
        try await DispatchQueue.engineCalls.offload { [handle] in
            var freed: UInt64 = 0
            try check { mlxgen_engine_trim(handle.pointer, &freed, $0) }
            return Int(clamping: freed)
        }
    }

    /// Stops all work, for an app that goes into the background: streams pause at a whole token and
    /// go on after ``resume()``; other calls that need work throw `wrongState` until then.
    ///
    /// - Throws: ``MLXGenError/Code-swift.struct/timeout`` when work did not stop within `limit`.
    public func suspend(within limit: Duration = .seconds(5)) async throws {
        let milliseconds = limit.libraryMilliseconds
        try await DispatchQueue.engineCalls.offload { [handle] in
            try check { mlxgen_engine_suspend(handle.pointer, milliseconds, $0) }
        }
    }

    /// Lets work go on after ``suspend(within:)``.
    public func resume() async throws {
        try await DispatchQueue.engineCalls.offload { [handle] in
            try check { mlxgen_engine_resume(handle.pointer, $0) }
        }
    }
}
