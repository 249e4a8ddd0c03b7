import CMLXGen

/// A part of a prompt.
public enum PromptPart: Sendable {
    case tokens([TokenID])
    /// Rows of `width` numbers, the model's hidden size, each in the place of a token; in the scale of what the model's
    /// own table gives. `key` names the content, such as a hash of a picture: what a cache set has read is reused where
    /// keys are equal, so equal keys have to mean equal numbers.
    case embeddings([Float], width: Int, key: [UInt8])
}

extension [PromptPart] {
    /// The parts as the library takes them.
    func withLibraryParts<Result>(_ body: (UnsafePointer<mlxgen_prompt_part>?, Int) throws -> Result) throws
        -> Result
    {
        try withParts(from: startIndex, after: [], body)
    }

    /// Each part's arrays stay in place while the parts behind it are added.
    private func withParts<Result>(
        from index: Int, after parts: [mlxgen_prompt_part],
        _ body: (UnsafePointer<mlxgen_prompt_part>?, Int) throws -> Result
    ) throws -> Result {
        guard index < endIndex else {
            return try parts.withUnsafeBufferPointer { try body($0.baseAddress, $0.count) }
        }
        var part = mlxgen_prompt_part()
        part.struct_size = MemoryLayout.size(ofValue: part)
        switch self[index] {
        case .tokens(let tokens):
            part.kind = MLXGEN_PART_TOKENS
            return try tokens.withUnsafeBufferPointer { tokens in
                part.tokens = tokens.baseAddress
                part.token_count = tokens.count
                return try withParts(from: index + 1, after: parts + [part], body)
            }
        case .embeddings(let values, let width, let key):
            guard width > 0, values.count.isMultiple(of: width) else {
                throw MLXGenError(
                    .invalidArgument, "\(values.count) numbers are no rows of \(width) embeddings",
                    detail: .init(field: "embeddings"))
            }
            part.kind = MLXGEN_PART_EMBEDDINGS
            part.embedding_rows = values.count / width
            part.embedding_width = width
            return try values.withUnsafeBufferPointer { values in
                try key.withUnsafeBytes { key in
                    part.embeddings = values.baseAddress
                    part.key = key.baseAddress?.assumingMemoryBound(to: CChar.self)
                    part.key_size = key.count
                    return try withParts(from: index + 1, after: parts + [part], body)
                }
            }
        }
    }
}
