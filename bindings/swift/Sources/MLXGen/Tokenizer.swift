import CMLXGen
import Dispatch
import Foundation

/// A token's number in the vocabulary of its model.
public typealias TokenID = UInt32

/// Turns text into tokens and back, and conversations into prompts. Any thread may use it.
public final class Tokenizer: Sendable {
    let handle: Handle

    init(owning handle: Handle) {
        self.handle = handle
    }

    /// Loads a tokenizer without its model.
    ///
    /// - Parameter url: a model folder, a repository's folder in the cache of the Hugging Face hub
    ///   (its revision main), a `tokenizer.json` or a `.gguf` file.
    /// - Throws: ``MLXGenError``: `notFound`, `invalidModel`, `unsupported`, `io`.
    public static func load(from url: URL) async throws -> Tokenizer {
        let path = url.path
        return try await DispatchQueue.engineCalls.offload {
            let handle = try path.withLibraryText { path, size in
                try make(mlxgen_tokenizer_release) { mlxgen_tokenizer_load(path, size, $0, $1) }
            }
            return Tokenizer(owning: handle)
        }
    }

    /// The tokens of a text.
    ///
    /// - Parameters:
    ///   - text: any text.
    ///   - addSpecialTokens: add what the model expects around a text, such as its beginning mark.
    ///   - parseSpecialTokens: let texts such as `<|im_end|>` become control tokens. Leave it off for
    ///     text that someone else wrote.
    public func encode(
        text: String, addSpecialTokens: Bool = true, parseSpecialTokens: Bool = false
    ) throws -> [TokenID] {
        let flags =
            (addSpecialTokens ? MLXGEN_TOKENIZE_ADD_SPECIAL : 0)
            | (parseSpecialTokens ? MLXGEN_TOKENIZE_PARSE_SPECIAL : 0)
        return try text.withLibraryText { text, size in
            try Buffer { mlxgen_tokenize(handle.pointer, text, size, UInt32(flags), $0, $1) }
        }.array(of: TokenID.self)
    }

    /// The text of tokens.
    ///
    /// - Throws: ``MLXGenError/Code-swift.struct/invalidArgument`` with the position of an unknown token.
    public func decode(tokens: [TokenID], skipSpecialTokens: Bool = false) throws -> String {
        let flags = skipSpecialTokens ? MLXGEN_DETOKENIZE_SKIP_SPECIAL : 0
        return try tokens.withUnsafeBufferPointer { tokens in
            try Buffer {
                mlxgen_detokenize(
                    handle.pointer, tokens.baseAddress, tokens.count, UInt32(flags), $0, $1)
            }
        }.text
    }

    /// The prompt of a conversation, as tokens.
    ///
    /// - Throws: ``MLXGenError``: `unsupported` without a chat template, `invalidArgument` when the
    ///   template refuses the messages.
    public func applyChatTemplate(
        messages: [Chat.Message], options: Chat.Options = .init()
    ) throws -> [TokenID] {
        try applyChatTemplate(messagesJSON: Self.json(messages), options: options)
    }

    /// The same for messages with more than text, such as tool calls: a JSON array of objects as the
    /// model's template expects them.
    public func applyChatTemplate(
        messagesJSON: String, options: Chat.Options = .init()
    ) throws -> [TokenID] {
        try render(messagesJSON, options) { json, size, options, error, tokens in
            mlxgen_chat_render(handle.pointer, json, size, options, nil, tokens, error)
        }.array(of: TokenID.self)
    }

    /// The prompt of a conversation, as text.
    public func chatText(messages: [Chat.Message], options: Chat.Options = .init()) throws -> String {
        try render(Self.json(messages), options) { json, size, options, error, text in
            mlxgen_chat_render(handle.pointer, json, size, options, text, nil, error)
        }.text
    }

    private static func json(_ messages: [Chat.Message]) throws -> String {
        String(decoding: try JSONEncoder().encode(messages), as: UTF8.self)
    }

    private func render(
        _ messagesJSON: String, _ options: Chat.Options,
        _ call: (
            UnsafePointer<CChar>?, Int, UnsafePointer<mlxgen_chat_options>, ErrorSlot,
            UnsafeMutablePointer<OpaquePointer?>
        ) -> mlxgen_status
    ) throws -> Buffer {
        try messagesJSON.withLibraryText { json, size in
            try options.withLibraryOptions { options in
                try Buffer { call(json, size, options, $1, $0) }
            }
        }
    }
}
