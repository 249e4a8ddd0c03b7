//! A template's tags: `{% generation %}` blocks, which mark what the assistant wrote for training,
//! become scopes, and the longest tag is measured.

/// The source with `generation` tags turned into `with` tags, which print their body and keep
/// assignments inside, as the original does; and how many bytes of code, strings left out, the
/// longest tag has.
pub(super) fn as_scopes(source: &str) -> (String, usize) {
    let mut out = String::with_capacity(source.len());
    let mut longest = 0;
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map(|end| end + 2),
            Some(b'{') => close(tag, "}}"),
            Some(b'%') => close(tag, "%}"),
            _ => Some(1),
        };
        let comment = tag.starts_with("{#");
        let (tag, after) = tag.split_at(length.unwrap_or(tag.len()));
        if !comment {
            longest = longest.max(code_length(tag));
        }
        let inner = tag.strip_prefix("{%").and_then(|t| t.strip_suffix("%}"));
        let name = inner.map(|t| t.trim_matches(['-', '+']).trim());
        match name {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
        if name == Some("raw") {
            let end = raw_end(rest);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    (out, longest)
}

/// The bytes of a tag that are not inside strings.
fn code_length(tag: &str) -> usize {
    let mut quote = None;
    let mut length = 0;
    let mut bytes = tag.bytes();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => drop(bytes.next()),
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => {
                quote = Some(byte);
                length += 1;
            }
            (None, _) => length += 1,
        }
    }
    length
}

/// The length of a tag up to and with its closing mark, which strings inside may contain.
fn close(tag: &str, mark: &str) -> Option<usize> {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'\'' | b'"')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(mark.as_bytes()) => return Some(at + mark.len()),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where the `endraw` tag begins.
fn raw_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let start = from + at;
        let name = text[start + 2..].trim_start_matches(['-', '+']).trim_start();
        if name.starts_with("endraw") {
            return start;
        }
        from = start + 2;
    }
    text.len()
}
