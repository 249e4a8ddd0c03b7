import CMLXGen

/// What a generation tells while it runs, in this order: prefill reports, text, one end.
public enum Generation: Equatable, Sendable {
    /// Part of the prompt is processed.
    case prefill(PrefillProgress)
    /// Tokens were generated.
    case text(TextChunk)
    /// The generation is over.
    case end(GenerateCompletionInfo)

    /// The text of a text event.
    public var chunk: String? {
        if case .text(let chunk) = self { chunk.text } else { nil }
    }

    /// The summary of the end event.
    public var info: GenerateCompletionInfo? {
        if case .end(let info) = self { info } else { nil }
    }
}

/// How much of the prompt is processed, in tokens.
public struct PrefillProgress: Equatable, Sendable {
    /// Processed so far, reused tokens included.
    public let done: Int
    /// Tokens of the prompt.
    public let total: Int
    /// Taken from the cache set instead of being computed.
    public let reused: Int
    /// Why the reuse ended where it did.
    public let reuseStop: ReuseStop

    /// Why no more tokens were reused.
    public enum ReuseStop: Equatable, Sendable {
        /// The cache set was empty, or there was none.
        case nothingCached
        /// The whole cache set is a prefix of the prompt.
        case cacheExhausted
        /// They differ there; the rest of the cache set was cut.
        case diverged
        /// The cache set covers the whole prompt.
        case promptCovered
        /// The tokens in common were reduced in precision together with others behind them: all are read again.
        case reduced
        /// A reason of a later version.
        case other(Int32)
    }
}

/// Whole characters and the tokens that they came with; either may be empty.
public struct TextChunk: Equatable, Sendable {
    /// Whole characters.
    public let text: String
    /// What they were made of.
    public let tokens: [TokenID]
    /// One for each token when they were asked for.
    public let logprobs: [TokenLogprob]
    /// Repeated from before a checkpoint instead of being computed now.
    public let replayed: Bool
}

/// A token's natural-log probability before temperature and filters.
public struct TokenLogprob: Equatable, Sendable {
    /// Of the token that was chosen.
    public let chosen: Float
    /// The likeliest tokens, as many as were asked for, in descending order.
    public let top: [Candidate]

    /// A token that might have been chosen.
    public struct Candidate: Equatable, Sendable {
        /// The token.
        public let token: TokenID
        /// Its log-probability.
        public let logprob: Float
    }
}

/// How a generation ended and what it took. Durations are in seconds.
public struct GenerateCompletionInfo: Equatable, Sendable {
    /// Why a generation ended.
    public enum StopReason: Equatable, Sendable {
        /// The model ended by itself.
        case endOfSequence
        /// This stop text came.
        case stopString(String)
        /// The most tokens that were asked for.
        case maxTokens
        /// What the grammar asks for is complete.
        case grammarEnd
        /// A cancelled task.
        case cancelled
        /// No room for a further token.
        case contextFull
        /// A reason of a later version.
        case other(Int32)
    }

    /// Why it ended.
    public let stopReason: StopReason
    /// Tokens of the prompt.
    public let promptTokenCount: Int
    /// Prompt tokens taken from the cache set instead of being computed.
    public let reusedTokenCount: Int
    /// Generated tokens, an ending end token included.
    public let generationTokenCount: Int
    /// From the request until the engine took it up.
    public let queuedTime: Double
    /// The prompt, until the first token.
    public let promptTime: Double
    /// From the first token to the end.
    public let generateTime: Double
    /// From the request to the first token.
    public let firstTokenTime: Double

    /// Generated tokens a second after the first; 0 when there was no second one.
    public var tokensPerSecond: Double {
        generationTokenCount > 1 && generateTime > 0
            ? Double(generationTokenCount - 1) / generateTime : 0
    }
}

extension Generation {
    /// Copies an event; nil for a kind that this module does not know.
    init?(_ event: mlxgen_event) {
        switch event.kind {
        case MLXGEN_EVENT_PREFILL: self = .prefill(PrefillProgress(event))
        case MLXGEN_EVENT_TEXT: self = .text(TextChunk(event))
        case MLXGEN_EVENT_END: self = .end(GenerateCompletionInfo(event))
        default: return nil
        }
    }
}

extension PrefillProgress {
    init(_ event: mlxgen_event) {
        done = Int(clamping: event.prefill_done)
        total = Int(clamping: event.prefill_total)
        reused = Int(clamping: event.prefill_reused)
        reuseStop =
            switch event.reuse_stop {
            case MLXGEN_REUSE_NOTHING_CACHED: .nothingCached
            case MLXGEN_REUSE_CACHE_EXHAUSTED: .cacheExhausted
            case MLXGEN_REUSE_DIVERGED: .diverged
            case MLXGEN_REUSE_PROMPT_COVERED: .promptCovered
            case MLXGEN_REUSE_REDUCED: .reduced
            default: .other(event.reuse_stop)
            }
    }
}

extension TextChunk {
    init(_ event: mlxgen_event) {
        text = String(libraryText: event.text, count: event.text_size)
        tokens = Array(libraryArray: event.tokens, count: event.token_count)
        replayed = event.replayed != 0
        let chosen = Array(libraryArray: event.logprobs, count: event.token_count)
        // Row i of the two [tokens, top_count] arrays belongs to token i.
        let size = event.top_count * chosen.count
        let topTokens = Array(libraryArray: event.top_tokens, count: size)
        let topLogprobs = Array(libraryArray: event.top_logprobs, count: size)
        let candidates = zip(topTokens, topLogprobs).map(TokenLogprob.Candidate.init)
        logprobs = chosen.enumerated().map { index, logprob in
            let row = candidates.dropFirst(index * event.top_count).prefix(event.top_count)
            return TokenLogprob(chosen: logprob, top: Array(row))
        }
    }
}

extension GenerateCompletionInfo {
    init(_ event: mlxgen_event) {
        stopReason =
            switch event.end_reason {
            case MLXGEN_END_EOS: .endOfSequence
            case MLXGEN_END_STOP_STRING:
                .stopString(String(libraryText: event.stop_text, count: event.stop_text_size))
            case MLXGEN_END_MAX_TOKENS: .maxTokens
            case MLXGEN_END_GRAMMAR: .grammarEnd
            case MLXGEN_END_CANCELLED: .cancelled
            case MLXGEN_END_CONTEXT_FULL: .contextFull
            default: .other(event.end_reason)
            }
        promptTokenCount = Int(clamping: event.prompt_tokens)
        reusedTokenCount = Int(clamping: event.reused_tokens)
        generationTokenCount = Int(clamping: event.generated_tokens)
        queuedTime = event.queued_seconds
        promptTime = event.prefill_seconds
        generateTime = event.decode_seconds
        firstTokenTime = event.first_token_seconds
    }
}
