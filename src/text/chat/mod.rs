//! Chat templates: a conversation becomes the text and tokens that a model was trained on.
//!
//! Templates are Jinja programs written for Python's jinja2 as transformers sets it up; everything
//! here is judged by whether it prints what that prints.

mod arguments;
mod environment;
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

/// Everything a template sees that callers can change.
#[derive(Clone)]
struct Inputs {
    messages: Value,
    tools: Value,
    documents: Value,
    extra: Value,
}

pub(super) fn render(
    tokenizer: &Tokenizer,
    messages_json: &str,
    options: &ChatOptions,
) -> Result<RenderedChat> {
    let template =
        tokenizer.chat_templates().pick(options.template_name.as_deref(), options.tools_json.is_some())?;
    let mut inputs = Inputs {
        messages: messages::messages(messages_json, options.tool_arguments)?,
        tools: messages::array("tools", options.tools_json.as_deref())?,
        documents: messages::array("documents", options.documents_json.as_deref())?,
        extra: Value::Object(messages::object("extra", options.extra_json.as_deref())?),
    };
    let end = if options.continue_final_message {
        Some(messages::mark_last(&mut inputs.messages, options.add_generation_prompt, CONTINUE_MARK)?)
    } else {
        None
    };
    let run = |inputs: &Inputs| -> Result<String> {
        let text = template.render(context(tokenizer, inputs, options.add_generation_prompt))?;
        match &end {
            Some(message) => messages::cut_at_mark(text, message, CONTINUE_MARK),
            None => Ok(text),
        }
    };
    let text = run(&inputs)?;
    if !options.parse_special_in_content {
        let mut marked = inputs.clone();
        let values = [&mut marked.messages, &mut marked.tools, &mut marked.documents, &mut marked.extra];
        if let Some(placeholders) = protect(values, template.source(), tokenizer.special_texts())? {
            let marked_text = run(&marked)?;
            let tokens = tokenizer.encode_protected(&marked_text, &placeholders)?;
            // The texts differ only if the template itself looks at such a text; then it sees
            // plain text, as the model will.
            return Ok(RenderedChat { text: placeholders.restore(&marked_text), tokens });
        }
    }
    let tokens = tokenizer.encode(&text, false, true)?;
    Ok(RenderedChat { text, tokens })
}

/// The variables, in the order of precedence: special tokens, the caller's, the conversation's.
fn context(tokenizer: &Tokenizer, inputs: &Inputs, add_generation_prompt: bool) -> Map<String, Value> {
    let mut variables = Map::new();
    for (name, text) in tokenizer.special_names() {
        variables.insert(name.clone(), Value::String(text.clone()));
    }
    if let Value::Object(extra) = &inputs.extra {
        variables.extend(extra.clone());
    }
    variables.insert("messages".into(), inputs.messages.clone());
    variables.insert("tools".into(), inputs.tools.clone());
    variables.insert("documents".into(), inputs.documents.clone());
    variables.insert("add_generation_prompt".into(), Value::Bool(add_generation_prompt));
    variables
}
