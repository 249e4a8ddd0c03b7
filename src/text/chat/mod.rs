//! Chat templates: a conversation becomes the text and tokens that a model was trained on.
//!
//! Templates are Jinja programs written for Python's jinja2 as transformers sets it up; everything
//! here is judged by whether it prints what that prints. What the engine cannot do differently:
//! `'%s' % x` is an error (`|format` works), `+x` is a syntax error, macros have no `varargs`, `~`
//! writes floats beyond 1e16 with all their digits, iterating over none gives nothing, values of
//! different kinds can be compared, and `|safe` does not escape what is added to it.

mod arguments;
mod environment;
mod fuel;
mod generation;
mod json;
mod library;
mod messages;
mod methods;
mod python;
mod templates;
mod time;

use serde_json::{Map, Value};

pub use templates::ChatTemplates;

use super::Tokenizer;
use super::protect::protect;
use crate::base::Result;

/// Whether a tool call's arguments reach the template as the caller gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolArguments {
    #[default]
    AsGiven,
    /// JSON text becomes the object it describes.
    AsObject,
    /// An object becomes JSON text.
    AsText,
}

/// What a template is given besides the messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// A JSON array of tools. A template named `tool_use` then wins over `default`.
    pub tools_json: Option<String>,
    /// A JSON array of documents.
    pub documents_json: Option<String>,
    /// Which of the model's templates; none: `tool_use` with tools, else `default`.
    pub template_name: Option<String>,
    /// Ask for the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
    /// A JSON object of further variables, such as `{"enable_thinking": false}`.
    pub extra_json: Option<String>,
    pub tool_arguments: ToolArguments,
    /// Let texts of special tokens in messages, tools and variables become those tokens.
    pub parse_special_in_content: bool,
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedChat {
    pub text: String,
    pub tokens: Vec<u32>,
}

/// Stands behind the last message while it is rendered, to find where it ends.
const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

pub(super) fn render(
    tokenizer: &Tokenizer,
    messages_json: &str,
    options: &ChatOptions,
) -> Result<RenderedChat> {
    let mut given = [
        messages::messages(messages_json, options.tool_arguments)?,
        messages::array("tools", options.tools_json.as_deref())?,
        messages::array("documents", options.documents_json.as_deref())?,
        Value::Object(messages::object("extra", options.extra_json.as_deref())?),
    ];
    let with_tools = !given[1].is_null();
    let template = tokenizer.chat_templates().pick(options.template_name.as_deref(), with_tools)?;
    let placeholders = if options.parse_special_in_content {
        None
    } else {
        protect(&mut given, template.source(), tokenizer.special_texts())?
    };
    let last = if options.continue_final_message {
        Some(messages::mark_last(&mut given[0], options.add_generation_prompt, CONTINUE_MARK)?)
    } else {
        None
    };
    let mut text = template.render(variables(tokenizer, given, options.add_generation_prompt))?;
    if let Some(last) = last {
        text = messages::cut_at_mark(text, &last, CONTINUE_MARK)?;
    }
    match placeholders {
        None => {
            let tokens = tokenizer.encode(&text, false, true)?;
            Ok(RenderedChat { text, tokens })
        }
        Some(placeholders) => {
            let text = placeholders.unescape(text);
            let tokens = tokenizer.encode_protected(&text, &placeholders)?;
            Ok(RenderedChat { text: placeholders.restore(&text), tokens })
        }
    }
}

/// What a template sees; the caller's variables win over the special tokens.
fn variables(tokenizer: &Tokenizer, given: [Value; 4], add_generation_prompt: bool) -> Map<String, Value> {
    let [messages, tools, documents, extra] = given;
    let mut variables = Map::new();
    for (name, text) in tokenizer.special_names() {
        variables.insert(name.clone(), Value::String(text.clone()));
    }
    if let Value::Object(extra) = extra {
        variables.extend(extra);
    }
    variables.insert("messages".into(), messages);
    variables.insert("tools".into(), tools);
    variables.insert("documents".into(), documents);
    variables.insert("add_generation_prompt".into(), Value::Bool(add_generation_prompt));
    variables
}
