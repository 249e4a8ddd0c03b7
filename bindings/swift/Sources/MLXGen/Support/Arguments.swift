import CMLXGen

extension String {
    /// The text as the library takes it: UTF-8 bytes and their count.
    func withLibraryText<Result>(_ body: (UnsafePointer<CChar>?, Int) throws -> Result) rethrows -> Result {
        var copy = self
        return try copy.withUTF8 { bytes in
            try bytes.withMemoryRebound(to: CChar.self) { try body($0.baseAddress, $0.count) }
        }
    }

    /// Borrowed text of the library; nil is the empty one.
    init(libraryText data: UnsafePointer<CChar>?, count: Int) {
        self.init(
            decoding: UnsafeRawBufferPointer(start: data, count: data == nil ? 0 : count), as: UTF8.self)
    }
}

extension Array where Element: BitwiseCopyable {
    /// A borrowed array of the library; nil is the empty one.
    init(libraryArray data: UnsafePointer<Element>?, count: Int) {
        self.init(UnsafeBufferPointer(start: data, count: data == nil ? 0 : count))
    }
}

/// A count or size as the library's unsigned type.
///
/// - Throws: ``MLXGenError/Code-swift.struct/invalidArgument`` naming `field` when it is negative or too great.
func unsigned<Value: UnsignedInteger & FixedWidthInteger>(
    _ value: Int, _ field: String, as type: Value.Type = Value.self
) throws -> Value {
    guard let unsigned = Value(exactly: value) else {
        throw MLXGenError(
            .invalidArgument, "\(field) must be between 0 and \(Value.max), not \(value)",
            detail: .init(field: field))
    }
    return unsigned
}

extension Duration {
    /// Whole milliseconds as the library takes a time limit; its greatest value means "for ever".
    var libraryMilliseconds: UInt32 {
        let (seconds, attoseconds) = components
        let milliseconds = Double(seconds) * 1000 + Double(attoseconds) / 1e15
        return milliseconds <= 0 ? 0 : milliseconds >= Double(UInt32.max) ? .max : UInt32(milliseconds)
    }
}
