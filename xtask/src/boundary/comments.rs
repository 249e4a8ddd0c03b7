//! Reads the functions of the header with their comments, and checks the form that CONVENTIONS.md promises.

use anyhow::{Context, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Status codes without their prefix, in the order of their numbers.
pub const CODES: [&str; 17] = [
    "OK",
    "DONE",
    "TIMEOUT",
    "CANCELLED",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "INVALID_MODEL",
    "UNSUPPORTED",
    "OUT_OF_MEMORY",
    "CONTEXT_FULL",
    "BUSY",
    "WRONG_STATE",
    "INCOMPATIBLE_CHECKPOINT",
    "IO",
    "GPU_TIMEOUT",
    "GPU_NOT_PERMITTED",
    "INTERNAL",
];

const HEADS: [&str; 4] = ["Threads: ", "Ownership: ", "Codes: ", "Since: "];
const THREAD_WORDS: [&str; 3] = ["any thread", "one call at a time per handle", "async-signal-safe"];

/// A function of the header.
#[derive(Debug, Default)]
pub struct Function {
    pub name: String,
    pub returns: String,
    /// Each with its type, such as `const char *path`.
    pub parameters: Vec<String>,
    /// Of the structs that it takes.
    pub members: Vec<String>,
    /// Without the stars of the comment.
    pub comment: String,
}

impl Function {
    /// The text after one of `HEADS`, up to the next.
    fn section(&self, head: &str) -> Option<&str> {
        let from = self.comment.find(&format!("\n{head}"))? + 1 + head.len();
        let rest = &self.comment[from..];
        let to = HEADS.iter().filter_map(|next| rest.find(&format!("\n{next}"))).min();
        Some(&rest[..to.unwrap_or(rest.len())])
    }

    /// What an error may name as the field that is at fault: a parameter, or a member of a struct.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let parameters = self.parameters.iter().filter_map(|text| text.rsplit([' ', '*']).next());
        parameters.chain(self.members.iter().map(String::as_str))
    }

    /// The codes that the comment lists, without their prefix; empty for "none".
    pub fn codes(&self) -> Vec<&str> {
        let text = self.section("Codes: ").unwrap_or_default();
        if text.starts_with("none") {
            return Vec::new();
        }
        let outside = outside_parentheses(text);
        CODES.into_iter().filter(|code| words(&outside).any(|word| word == *code)).collect()
    }

    /// Whether it answers with a status of its own work.
    pub fn is_fallible(&self) -> bool {
        self.returns == "mlxgen_status" && !self.codes().is_empty()
    }
}

pub fn read(root: &Path) -> Result<Vec<Function>> {
    let path = root.join("include/mlxgen.h");
    let header = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(parse(&header))
}

fn parse(header: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut comment = String::new();
    let mut structs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line == "typedef struct {" {
            let mut members = Vec::new();
            for line in lines.by_ref() {
                if let Some(name) = line.strip_prefix("} ") {
                    structs.insert(name.trim_end_matches(';'), members);
                    break;
                }
                if let Some(member) = line.strip_suffix(';').and_then(|line| line.rsplit([' ', '*']).next()) {
                    members.push(member);
                }
            }
        } else if line == "/**" {
            comment = lines
                .by_ref()
                .take_while(|line| *line != " */")
                .map(|line| line.trim_start_matches(" *").trim_start().to_owned() + "\n")
                .collect();
        } else if line.contains("mlxgen_") && line.contains('(') && !line.starts_with(['#', ' ', 't', '/']) {
            let mut declaration = line.to_owned();
            while !declaration.ends_with(';') {
                let Some(more) = lines.next() else { break };
                declaration = format!("{declaration} {}", more.trim());
            }
            functions.push(function(&declaration, std::mem::take(&mut comment)));
        }
    }
    for function in &mut functions {
        let kinds = function.parameters.iter().filter_map(|text| text.split_once('*'));
        let kinds = kinds.map(|(kind, _)| kind.trim_start_matches("const ").trim());
        let members = kinds.filter_map(|kind| structs.get(kind)).flatten();
        function.members = members.map(|member| (*member).to_owned()).collect();
    }
    functions
}

fn function(declaration: &str, comment: String) -> Function {
    let (head, parameters) = declaration.split_once('(').unwrap_or((declaration, ""));
    let start = head.rfind([' ', '*']).map_or(0, |at| at + 1);
    let parameters = parameters.trim_end_matches(");").split(", ").map(str::trim);
    Function {
        name: head[start..].to_owned(),
        returns: head[..start].trim().to_owned(),
        parameters: parameters.filter(|text| *text != "void").map(str::to_owned).collect(),
        members: Vec::new(),
        comment,
    }
}

/// What does not have the promised form.
pub fn lint(functions: &[Function]) -> Vec<String> {
    let mut faults = Vec::new();
    for function in functions {
        let mut fault = |text: String| faults.push(format!("  {}: {text}", function.name));
        let places: Vec<_> = HEADS.iter().map(|head| function.comment.find(&format!("\n{head}"))).collect();
        if places.iter().any(Option::is_none) || !places.is_sorted() || places[0] == Some(0) {
            fault(format!("the comment needs a text and then {HEADS:?}, in this order"));
            continue;
        }
        let threads = function.section("Threads: ").unwrap_or_default();
        if !THREAD_WORDS.iter().any(|word| threads.starts_with(word)) {
            fault(format!("Threads must begin with one of {THREAD_WORDS:?}"));
        }
        codes(function, &mut fault);
        ownership(function, &mut fault);
        language(function, &mut fault);
        if function.section("Since: ").is_none_or(|since| !is_version(since.trim())) {
            fault("Since must be a version, such as 0.1.".into());
        }
    }
    faults
}

fn codes(function: &Function, fault: &mut impl FnMut(String)) {
    let text = function.section("Codes: ").unwrap_or_default();
    let listed: Vec<String> = outside_parentheses(text).split(", ").map(|code| code.trim().into()).collect();
    if text.starts_with("none") {
        if function.parameters.iter().any(|parameter| parameter.ends_with("**out_error")) {
            fault("a function with out_error has codes".into());
        }
        return;
    }
    if function.codes() != listed.iter().map(|code| code.trim_end_matches('.').trim()).collect::<Vec<_>>() {
        fault(format!("Codes must be known, in the order of their numbers, with commas between: {listed:?}"));
    }
    if listed.first().is_none_or(|code| code.trim_end_matches('.') != "OK") {
        fault("the first of the codes must be OK".into());
    }
}

/// Outputs, and pointers that are no handles, must be spoken of under Ownership.
fn ownership(function: &Function, fault: &mut impl FnMut(String)) {
    let text = function.section("Ownership: ").unwrap_or_default();
    for parameter in &function.parameters {
        let Some((kind, name)) = parameter.rsplit_once('*') else { continue };
        let is_handle = kind.ends_with(' ') && is_object(kind.trim_start_matches("const ").trim());
        if name != "out_error" && !is_handle && !text.contains(&format!("`{name}`")) {
            fault(format!("Ownership does not speak of `{name}`"));
        }
    }
}

fn is_object(kind: &str) -> bool {
    let objects = ["error", "buffer", "cancel", "engine", "tokenizer", "model", "cache", "stream"];
    kind.strip_prefix("mlxgen_").is_some_and(|name| objects.contains(&name))
}

/// No words of Rust; in backticks only what a C programmer finds in the header.
fn language(function: &Function, fault: &mut impl FnMut(String)) {
    let comment = &function.comment;
    for sign in ["::", "#", "->", "&str", "Option", "Vec<", "Result<", "panic", "unsafe", "Rust", "trait"] {
        if comment.contains(sign) {
            fault(format!("the comment says {sign:?}"));
        }
    }
    let own: BTreeSet<&str> =
        function.parameters.iter().filter_map(|text| text.rsplit([' ', '*']).next()).collect();
    for (index, quoted) in comment.split('`').enumerate() {
        let is_known =
            own.contains(quoted) || quoted.starts_with("sizeof(mlxgen_") || quoted == "struct_size";
        if index % 2 == 1 && !is_known {
            fault(format!("`{quoted}` is not a parameter"));
        }
    }
}

fn is_version(text: &str) -> bool {
    text.strip_suffix('.').is_some_and(|version| {
        version.split('.').count() >= 2 && version.split('.').all(|part| part.parse::<u32>().is_ok())
    })
}

fn outside_parentheses(text: &str) -> String {
    let mut depth = 0;
    let mut outside = String::new();
    for sign in text.chars() {
        match sign {
            '(' => depth += 1,
            ')' => depth -= 1,
            '\n' => outside.push(' '),
            _ if depth == 0 => outside.push(sign),
            _ => {}
        }
    }
    outside
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
typedef struct {
    /**
     * Bytes; as known.
     */
    size_t struct_size;
    mlxgen_cancel *cancel;
} mlxgen_model_options;

/**
 * Reads `path`.
 *
 * Threads: any thread.
 * Ownership: `path` and `options` are read; `out` receives a handle.
 * Codes: OK, INVALID_ARGUMENT (not
 * BUSY), IO.
 * Since: 0.1.
 */
mlxgen_status mlxgen_model_load(const mlxgen_engine *engine,
                                const char *path,
                                const mlxgen_model_options *options,
                                mlxgen_model **out,
                                mlxgen_error **out_error);
";

    fn faults(header: &str) -> String {
        lint(&parse(header)).join("\n")
    }

    #[test]
    fn a_function_is_read_with_its_comment() {
        let functions = parse(GOOD);
        assert_eq!(functions.len(), 1);
        assert_eq!(functions[0].name, "mlxgen_model_load");
        assert_eq!(functions[0].returns, "mlxgen_status");
        assert_eq!(functions[0].parameters.len(), 5);
        let fields: Vec<_> = functions[0].fields().collect();
        assert_eq!(fields, ["engine", "path", "options", "out", "out_error", "struct_size", "cancel"]);
        assert_eq!(functions[0].codes(), ["OK", "INVALID_ARGUMENT", "IO"]);
        assert_eq!(faults(GOOD), "");
    }

    #[test]
    fn each_fault_of_form_is_found() {
        for (from, to, said) in [
            (" * Threads: any thread.\n", "", "in this order"),
            ("any thread", "whatever", "Threads must begin"),
            ("`out` receives", "it receives", "does not speak of `out`"),
            (", IO.", ", DONE.", "order of their numbers"),
            (", IO.", ", ODD.", "order of their numbers"),
            ("OK, INVALID", "INVALID", "first of the codes"),
            ("OK, INVALID_ARGUMENT (not\n * BUSY), IO.", "none.", "has codes"),
            ("Since: 0.1.", "Since: soon.", "Since must be"),
            ("Reads `path`", "Reads `Path`", "not a parameter"),
            ("Reads", "Reads std::fs", "says \"::\""),
        ] {
            let header = GOOD.replace(from, to);
            assert_ne!(header, GOOD);
            assert!(faults(&header).contains(said), "{said}: {}", faults(&header));
        }
    }
}
