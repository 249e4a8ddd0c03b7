//! The tokenizer that a GGUF file carries in its metadata.

use std::path::Path;

use crate::base::{Error, Result};
use crate::model::weights::GgufMetadata;
use crate::text::{GgufTokenizer, Tokenizer};

const MODEL: &str = "tokenizer.ggml.model";
const TEMPLATE: &str = "tokenizer.chat_template";

/// The tokenizer of an open GGUF file; `None` if it carries none.
pub fn from_metadata(metadata: &GgufMetadata) -> Result<Option<Tokenizer>> {
    let Some(source) = source(metadata)? else { return Ok(None) };
    Tokenizer::from_gguf(source).map(Some).map_err(|error| match error.detail().file {
        Some(_) => error,
        None => error.file(metadata.path()),
    })
}

/// Reads the tokenizer of a GGUF file; INVALID_MODEL if it carries none.
pub fn open(path: &Path) -> Result<Tokenizer> {
    from_metadata(&GgufMetadata::open(path)?)?.ok_or_else(|| {
        Error::invalid_model(format!("{} carries no tokenizer", path.display())).file(path).field(MODEL)
    })
}

fn source(metadata: &GgufMetadata) -> Result<Option<GgufTokenizer>> {
    let Some(model) = metadata.text(MODEL)? else { return Ok(None) };
    let texts = |key: &str| -> Result<Vec<String>> {
        Ok(metadata.texts(key)?.map(|texts| texts.map(str::to_owned).collect()).unwrap_or_default())
    };
    let id = |key: &str| metadata.token_id(key);
    let mut extra_eos = Vec::new();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        extra_eos.extend(id(key)?);
    }
    extra_eos.extend(ids(metadata, "tokenizer.ggml.eos_token_ids")?);
    Ok(Some(GgufTokenizer {
        model: model.to_owned(),
        pre: metadata.text("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens: texts("tokenizer.ggml.tokens")?,
        token_types: token_types(metadata)?,
        merges: texts("tokenizer.ggml.merges")?,
        scores: metadata.floats("tokenizer.ggml.scores")?.unwrap_or_default(),
        add_space_prefix: metadata.flag("tokenizer.ggml.add_space_prefix")?,
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        unk: id("tokenizer.ggml.unknown_token_id")?,
        pad: id("tokenizer.ggml.padding_token_id")?,
        extra_eos,
        add_bos: metadata.flag("tokenizer.ggml.add_bos_token")?,
        add_eos: metadata.flag("tokenizer.ggml.add_eos_token")?,
        chat_template: metadata.text(TEMPLATE)?.map(str::to_owned),
        named_templates: named_templates(metadata)?,
    }))
}

fn ids(metadata: &GgufMetadata, key: &str) -> Result<Vec<u32>> {
    let numbers = metadata.integers(key)?.unwrap_or_default();
    let ids: Option<Vec<u32>> = numbers.into_iter().map(|number| u32::try_from(number).ok()).collect();
    ids.ok_or_else(|| metadata.invalid(key, "must hold token ids"))
}

fn token_types(metadata: &GgufMetadata) -> Result<Vec<i32>> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let numbers = metadata.integers(KEY)?.unwrap_or_default();
    let types: Option<Vec<i32>> = numbers.into_iter().map(|number| i32::try_from(number).ok()).collect();
    types.ok_or_else(|| metadata.invalid(KEY, "must hold token types"))
}

/// Templates under `tokenizer.chat_template.NAME`.
fn named_templates(metadata: &GgufMetadata) -> Result<Vec<(String, String)>> {
    let mut templates = Vec::new();
    for key in metadata.keys() {
        let name = key.strip_prefix(TEMPLATE).and_then(|rest| rest.strip_prefix('.'));
        if let Some(name) = name
            && let Some(template) = metadata.text(key)?
        {
            templates.push((name.to_owned(), template.to_owned()));
        }
    }
    Ok(templates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Code;
    use crate::model::weights::testing::{GgufFile, llama};

    fn write(file: &GgufFile) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        file.write(&path);
        (folder, path)
    }

    fn tokenizer() -> GgufFile {
        llama()
            .text(MODEL, "gpt2")
            .text("tokenizer.ggml.pre", "gpt-2")
            .texts("tokenizer.ggml.tokens", &["<end>", "a", "b", "ab", "<turn>"])
            .i32s("tokenizer.ggml.token_type", &[3, 1, 1, 1, 3])
            .texts("tokenizer.ggml.merges", &["a b"])
            .u32("tokenizer.ggml.eos_token_id", 0)
            .u32("tokenizer.ggml.eot_token_id", 4)
            .text(TEMPLATE, "{{ messages }}")
            .text("tokenizer.chat_template.tool_use", "{{ tools }}")
    }

    #[test]
    fn metadata_gives_a_tokenizer() {
        let (_folder, path) = write(&tokenizer());
        let metadata = GgufMetadata::open(&path).unwrap();
        let described = source(&metadata).unwrap().unwrap();
        assert_eq!(described.extra_eos, [4]);
        assert_eq!(described.named_templates, [("tool_use".to_owned(), "{{ tools }}".to_owned())]);
        let tokenizer = open(&path).unwrap();
        assert_eq!(tokenizer.encode("abba<turn>", false, true).unwrap(), [3, 2, 1, 4]);
        assert_eq!(tokenizer.eos(), [0, 4]);
        assert!(tokenizer.has_chat_template());
    }

    #[test]
    fn a_file_without_a_tokenizer_and_bad_ones() {
        let (_folder, path) = write(&llama());
        assert!(from_metadata(&GgufMetadata::open(&path).unwrap()).unwrap().is_none());
        assert_eq!(open(&path).unwrap_err().code(), Code::InvalidModel);
        for (file, code, field) in [
            (llama().text(MODEL, "bert"), Code::Unsupported, MODEL),
            (llama().u32(MODEL, 1), Code::InvalidModel, MODEL),
            (
                llama().text(MODEL, "gpt2").i32s("tokenizer.ggml.eos_token_ids", &[-1]),
                Code::InvalidModel,
                "tokenizer.ggml.eos_token_ids",
            ),
            (
                llama().text(MODEL, "gpt2").texts("tokenizer.ggml.token_type", &["x"]),
                Code::InvalidModel,
                "tokenizer.ggml.token_type",
            ),
        ] {
            let (_folder, path) = write(&file);
            let error = open(&path).unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert_eq!(error.detail().field.as_deref(), Some(field));
            assert_eq!(error.detail().file.as_deref(), Some(path.as_path()));
        }
    }
}
