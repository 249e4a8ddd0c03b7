//! Word splitting for byte-level vocabularies in GGUF files, which name it instead of giving it.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::base::quote::quote;
use crate::base::{Error, Result};

/// What a name in `tokenizer.ggml.pre` says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    /// Patterns, each of which splits what those before it left; what lies between matches is a piece too.
    patterns: &'static [&'static str],
    /// A word that is a token as a whole is not built from merges.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with the begin-of-sequence token when the file does not say.
    pub(super) add_bos: bool,
    /// Whether the models' own tokenizers normalise text to NFC first.
    pub(super) compose: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";

/// GPT-4's pattern with the given alternative for numbers.
macro_rules! gpt4 {
    ($number:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $number,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// A word of any case, as GPT-4o's and Tekken's patterns split it, with the given ending and numbers.
macro_rules! cased {
    ($ending:literal, $number:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $ending,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $ending,
            "|",
            $number,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// GPT-4's pattern whose punctuation takes no line ends with it.
const SEED: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];

const PLAIN: Scheme = Scheme { patterns: &[GPT2], ignore_merges: false, add_bos: false, compose: false };

/// The scheme with this name; none means `default`. UNSUPPORTED naming one that is not known.
pub(super) fn scheme(name: Option<&str>) -> Result<Scheme> {
    let scheme = match name.unwrap_or("default") {
        "default" => Scheme { patterns: &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN },
        "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4"
        | "modern-bert" | "gigachat" | "a.x-4.0" | "mellum" => PLAIN,
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => Scheme { patterns: &[DIGIT, GPT2], ..PLAIN },
        "falcon" => Scheme { patterns: &[r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"], ..PLAIN },
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
            Scheme { patterns: &[gpt4!(r"\p{N}{1,3}")], ignore_merges: true, add_bos: true, ..PLAIN }
        }
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => Scheme { patterns: &[gpt4!(r"\p{N}{1,3}")], ..PLAIN },
        "glm4" => Scheme { patterns: &[gpt4!(r"\p{N}{1,3}")], ignore_merges: true, ..PLAIN },
        "minicpm5" => Scheme { patterns: &[r"\p{N}{1,3}", gpt4!(r"\p{N}+")], ignore_merges: true, ..PLAIN },
        "seed-coder" => Scheme { patterns: &[SEED], ..PLAIN },
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "kormo" | "f2llmv2" => {
            Scheme { patterns: &[gpt4!(r"\p{N}")], compose: true, ..PLAIN }
        }
        "stablelm2" | "hunyuan" | "grok-2" | "solar-open" => Scheme { patterns: &[gpt4!(r"\p{N}")], ..PLAIN },
        "qwen35" => Scheme { patterns: &[QWEN35], compose: true, ..PLAIN },
        "tekken" => Scheme { patterns: &[cased!("", r"\p{N}")], ignore_merges: true, add_bos: true, ..PLAIN },
        "gpt-4o" | "llama4" | "minimax-m2" => {
            Scheme { patterns: &[cased!("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")], ..PLAIN }
        }
        "deepseek-v3" | "hunyuan-dense" => Scheme { patterns: DEEPSEEK3, ..PLAIN },
        other => {
            return Err(Error::unsupported(format!("the pre-tokenizer {} is not known", quote(other)))
                .field("tokenizer.ggml.pre"));
        }
    };
    Ok(scheme)
}

impl Scheme {
    /// Splits words and spells their bytes.
    pub(super) fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| Error::internal(format!("a pre-tokenizer's pattern is wrong: {e}")))?;
            steps.push(split.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}
