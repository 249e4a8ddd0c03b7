//! Tokens that files declare besides the vocabulary, and what is put around each text.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokenizers::AddedToken;
use tokenizers::processors::template::{SpecialToken, TemplateProcessing, Tokens};

use super::guard::unpanicked;
use crate::base::quote::quote;
use crate::base::{Error, Result};

/// Declares the tokens of tokenizer_config.json's `added_tokens_decoder`, and makes special those
/// that have a name or stand in a list of special tokens.
///
/// Entries whose id contradicts the vocabulary are left out: their text stays ordinary text.
pub(super) fn declare(
    inner: &mut tokenizers::Tokenizer,
    config: &Map<String, Value>,
    names: &[(String, String)],
) -> Result<()> {
    let mut declared: BTreeMap<u32, AddedToken> = BTreeMap::new();
    for (id, token) in config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
        let bad = || {
            Error::invalid_model(format!(
                "added_tokens_decoder has an entry {} that is not a token",
                quote(id)
            ))
            .field("added_tokens_decoder")
        };
        let id: u32 = id.parse().map_err(|_| bad())?;
        declared.insert(id, token_of(token).ok_or_else(bad)?);
    }
    let lists =
        ["additional_special_tokens", "extra_special_tokens"].into_iter().filter_map(|key| config.get(key));
    let listed = lists.flat_map(texts).chain(names.iter().map(|(_, text)| text.clone()));
    let listed: Vec<String> = listed.collect();
    let mut next = inner.get_vocab_size(true);
    for (id, token) in declared {
        match inner.token_to_id(&token.content) {
            Some(known) if known == id => add(inner, token)?,
            None if id as usize == next => {
                add(inner, token)?;
                next += 1;
            }
            _ => {}
        }
    }
    for text in listed {
        let Some(id) = inner.token_to_id(&text) else { continue };
        let known = inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).cloned();
        let token = known.unwrap_or_else(|| AddedToken::from(text, true));
        add(inner, token.special(true))?;
    }
    Ok(())
}

fn add(inner: &mut tokenizers::Tokenizer, token: AddedToken) -> Result<()> {
    let id = inner.token_to_id(&token.content);
    let known = id.and_then(|id| inner.get_added_vocabulary().get_added_tokens_decoder().get(&id));
    if known == Some(&token) {
        return Ok(());
    }
    let content = token.content.clone();
    let failed = || Error::invalid_model(format!("the token {} cannot be added", quote(&content)));
    let added = unpanicked(|| inner.add_tokens([token])).map_err(|_| failed())?;
    added.map(drop).map_err(|_| failed())
}

/// A token from its text, or from an object with its text and properties.
fn token_of(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    let content = value.get("content").unwrap_or(value).as_str()?;
    let token = AddedToken::from(content, special)
        .normalized(flag("normalized").unwrap_or(!special))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .single_word(flag("single_word").unwrap_or(false));
    Some(token)
}

/// The token texts in a list, or in an object by name.
fn texts(value: &Value) -> Vec<String> {
    let items: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    };
    items.into_iter().filter_map(token_of).map(|token| token.content).collect()
}

/// Puts a token before and after each text.
pub(super) fn surround(before: Option<u32>, after: Option<u32>) -> Result<TemplateProcessing> {
    let failed = |e: String| Error::internal(format!("a post-processor could not be made: {e}"));
    let pieces = [before.map(|_| "before"), Some("$A"), after.map(|_| "after")];
    let template: Vec<String> = pieces.into_iter().flatten().map(str::to_owned).collect();
    let mut special = Vec::new();
    for (name, id) in [("before", before), ("after", after)] {
        if let Some(id) = id {
            let token = SpecialToken::new(name.to_owned(), vec![id], vec![name.to_owned()]);
            special.push(token.map_err(|e| failed(e.to_string()))?);
        }
    }
    TemplateProcessing::builder()
        .try_single(template)
        .map_err(|e| failed(e.to_string()))?
        .special_tokens(Tokens::from(special))
        .build()
        .map_err(|e| failed(e.to_string()))
}
