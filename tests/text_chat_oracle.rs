//! Chat templates print what transformers and jinja2 print: case B34, and everything else that
//! scripts/chat_oracle.py recorded.

mod text_support;

use mlxgen::text::ChatOptions;
use serde_json::Value;
use text_support::with_template;

fn oracle() -> Value {
    serde_json::from_str(include_str!("data/chat_oracle.json")).unwrap()
}

fn json(value: &Value) -> Option<String> {
    (!value.is_null()).then(|| value.to_string())
}

/// What differs, with what was expected; empty if nothing.
fn compare(
    name: &str,
    expected: &Value,
    found: mlxgen::base::Result<mlxgen::text::RenderedChat>,
) -> Option<String> {
    match (expected.as_str(), found) {
        (Some(expected), Ok(found)) if found.text == expected => None,
        (None, Err(_)) => None,
        (expected, found) => {
            let found = found.map(|chat| chat.text).map_err(|error| error.to_string());
            Some(format!("{name}\n  expected {expected:?}\n  found    {found:?}"))
        }
    }
}

#[test]
fn b34_snippets_print_what_jinja2_prints() {
    let oracle = oracle();
    let messages = oracle["shared"]["messages"].to_string();
    let options = ChatOptions { extra_json: json(&oracle["shared"]["extra"]), ..ChatOptions::default() };
    let snippets = oracle["snippets"].as_array().unwrap();
    let wrong: Vec<String> = snippets
        .iter()
        .filter_map(|snippet| {
            let tokenizer = with_template(snippet["template"].as_str().unwrap());
            let found = tokenizer.chat_render(&messages, &options);
            compare(snippet["name"].as_str().unwrap(), &snippet["expected"], found)
        })
        .collect();
    assert!(snippets.len() > 150);
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), snippets.len(), wrong.join("\n"));
}

#[test]
fn conversations_print_what_transformers_prints() {
    let oracle = oracle();
    let conversations = oracle["conversations"].as_array().unwrap();
    let wrong: Vec<String> = conversations
        .iter()
        .filter_map(|entry| {
            let (template, case) = (entry["template"].as_str().unwrap(), entry["case"].as_str().unwrap());
            let tokenizer = with_template(oracle["templates"][template].as_str().unwrap());
            let given = &oracle["cases"][case];
            let options = ChatOptions {
                tools_json: json(&given["tools"]),
                documents_json: json(&given["documents"]),
                extra_json: json(&given["extra"]),
                add_generation_prompt: given["add_generation_prompt"] == true,
                continue_final_message: given["continue_final_message"] == true,
                ..ChatOptions::default()
            };
            let found = tokenizer.chat_render(&given["messages"].to_string(), &options);
            compare(&format!("{template} / {case}"), &entry["expected"], found)
        })
        .collect();
    assert!(conversations.len() > 50);
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), conversations.len(), wrong.join("\n"));
}
