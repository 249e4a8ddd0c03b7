//! The caller's JSON, brought into the form that transformers gives to templates.

use serde_json::{Map, Value};

use super::ToolArguments;
use crate::base::quote::json_fault;
use crate::base::{Error, Result};

/// Names under which a message's reasoning is passed; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

fn parse(field: &str, json: &str) -> Result<Value> {
    serde_json::from_str(json).map_err(|fault| {
        let before: usize =
            json.split_inclusive('\n').take(fault.line().saturating_sub(1)).map(str::len).sum();
        let position = (before + fault.column().saturating_sub(1)) as u64;
        Error::invalid_argument(format!("{field} is not JSON: {}", json_fault(&fault)))
            .field(field)
            .position(position)
    })
}

/// An array of objects; null if none is given.
pub(super) fn array(field: &str, json: Option<&str>) -> Result<Value> {
    let Some(json) = json else { return Ok(Value::Null) };
    match parse(field, json)? {
        Value::Null => Ok(Value::Null),
        Value::Array(items) => match items.iter().position(|item| !item.is_object()) {
            None => Ok(Value::Array(items)),
            Some(index) => Err(Error::invalid_argument(format!("{field}[{index}] is not an object"))
                .field(field)
                .position(index as u64)),
        },
        _ => Err(Error::invalid_argument(format!("{field} is not an array")).field(field)),
    }
}

pub(super) fn object(field: &str, json: Option<&str>) -> Result<Map<String, Value>> {
    let Some(json) = json else { return Ok(Map::new()) };
    match parse(field, json)? {
        Value::Null => Ok(Map::new()),
        Value::Object(map) => Ok(map),
        _ => Err(Error::invalid_argument(format!("{field} is not an object")).field(field)),
    }
}

/// The conversation: keys whose value is null are dropped, reasoning is found under each of its names.
pub(super) fn messages(json: &str, arguments: ToolArguments) -> Result<Value> {
    let Value::Array(messages) = array("messages", Some(json))? else {
        return Err(Error::invalid_argument("messages is not an array").field("messages"));
    };
    if messages.is_empty() {
        return Err(Error::invalid_argument("there are no messages").field("messages"));
    }
    let mut normal = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let Value::Object(mut message) = message else { continue };
        message.retain(|_, value| !value.is_null());
        convert_arguments(&mut message, arguments)
            .map_err(|reason| Error::invalid_argument(reason).field("messages").position(index as u64))?;
        normal.push(Value::Object(alias_reasoning(message)));
    }
    Ok(Value::Array(normal))
}

fn alias_reasoning(message: Map<String, Value>) -> Map<String, Value> {
    let Some(reasoning) = REASONING.iter().find_map(|name| message.get(*name)).cloned() else {
        return message;
    };
    let mut aliased = Map::new();
    aliased.insert("thinking".into(), reasoning.clone());
    aliased.extend(message);
    aliased.insert("reasoning_content".into(), reasoning);
    aliased
}

fn convert_arguments(message: &mut Map<String, Value>, arguments: ToolArguments) -> Result<(), String> {
    if arguments == ToolArguments::AsGiven {
        return Ok(());
    }
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return Ok(()) };
    for call in calls {
        let call =
            if call.get("function").is_some_and(Value::is_object) { &mut call["function"] } else { call };
        let Some(value) = call.get_mut("arguments") else { continue };
        match (arguments, &*value) {
            (ToolArguments::AsObject, Value::String(text)) => {
                let object: Value = serde_json::from_str(text)
                    .map_err(|e| format!("a tool call's arguments are not JSON: {}", json_fault(&e)))?;
                *value = object;
            }
            (ToolArguments::AsText, Value::Object(_)) => *value = Value::String(super::json::text(value)),
            _ => {}
        }
    }
    Ok(())
}

/// Puts `mark` behind the last message's text, which is returned.
pub(super) fn mark_last(messages: &mut Value, add_generation_prompt: bool, mark: &str) -> Result<String> {
    let bad = |reason: &str| Error::invalid_argument(reason).field("continue_final_message");
    if add_generation_prompt {
        return Err(bad("a final message cannot be continued and followed by a generation prompt"));
    }
    let content = messages.as_array_mut().and_then(|m| m.last_mut()).and_then(|last| last.get_mut("content"));
    let text = match content {
        Some(text @ Value::String(_)) => Some(text),
        Some(Value::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        _ => None,
    };
    let Some(Value::String(text)) = text else {
        return Err(bad("the final message has no text to continue"));
    };
    let message = text.clone();
    text.push_str(mark);
    Ok(message)
}

/// Cuts the rendered text at the mark.
pub(super) fn cut_at_mark(mut text: String, message: &str, mark: &str) -> Result<String> {
    let at = text.rfind(mark.trim_end()).filter(|_| text.contains(message.trim()));
    let Some(at) = at else {
        return Err(Error::invalid_argument("the template does not show the final message as it is")
            .field("continue_final_message"));
    };
    let untouched = text[at..].starts_with(mark);
    text.truncate(at);
    if !untouched {
        // The template trims messages, so what is continued has no trailing space either.
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}
