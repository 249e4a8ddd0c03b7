//! What a hostile template may cost: bounded stack, bounded time, bounded memory.

use std::thread;

use serde_json::json;

use super::*;

/// Runs with little stack, as a host's thread may have.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let small = thread::Builder::new().stack_size(256 << 10);
        small.spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

fn repeat_to(length: usize, unit: &str) -> String {
    unit.repeat(length / unit.len())
}

fn render_with(source: &str, fuel: &[u64], part: usize) -> Result<String> {
    let variables = json!({"messages": [{"role": "user", "content": "hi"}]});
    on_small_stack(|| compile(source)?.render_within(&variables, fuel, part))
}

fn refused(source: &str) -> Error {
    let Err(error) = render_with(source, &FUEL[..2], 1) else {
        panic!("rendered: {}", &source[..source.len().min(100)]);
    };
    error
}

fn is_spent(error: &Error) {
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert!(error.message().contains("too many steps"), "{error}");
}

#[test]
fn the_longest_tags_compile_in_a_quarter_of_the_stack() {
    let room = MOST_TAG - 20;
    for (before, unit, after) in [
        ("", "-", "1"),
        ("", "not ", "1"),
        ("1", "+1", ""),
        ("a", "+a", ""),
        ("a", "~'b'", ""),
        ("a", "~b", ""),
        ("a", "|e", ""),
        ("a", ".b", ""),
        ("a", "[0]", ""),
        ("a", "()", ""),
        ("2", "**2", ""),
        ("a", "**a", ""),
        ("1", "<1", ""),
        ("a", "<a", ""),
        ("a", " is b", ""),
        ("a", " in b", ""),
        ("a", " and b", ""),
        ("a", " or b", ""),
        ("", "a if b else ", "c"),
        ("", "(", "1"),
        ("", "[", "1"),
        ("a }}{% macro m() %}{{ a", "+a", " }}{% endmacro %}{{ m()"),
        ("[", "1,", "]"),
    ] {
        let source = format!("{{{{ {before}{}{after} }}}}", repeat_to(room, unit));
        // Whether it compiles is the engine's affair; that it comes back is ours.
        if let Ok(compiled) = on_small_stack(|| compile_within(&source, 4)) {
            let _ = on_small_stack(|| compiled.render_within(&json!({}), &FUEL[..1], 4));
        }
    }
}

#[test]
fn the_longest_sources_compile_in_a_quarter_of_the_stack() {
    let room = MOST_SOURCE - 40;
    for (before, unit, after) in [
        ("{%if a%}", "{%elif a%}", "{%endif%}"),
        ("", "{%set a=[a]%}", ""),
        ("", "{%if a%}", ""),
        ("", "{{a}}", ""),
        ("{% macro m() %}", "{%if a%}{%endif%}", "{% endmacro %}{{ m() }}"),
        ("{% macro m() %}{%if a%}", "{%elif a%}", "{%endif%}{% endmacro %}{{ m() }}"),
    ] {
        let source = format!("{before}{}{after}", repeat_to(room, unit));
        if let Ok(compiled) = on_small_stack(|| compile_within(&source, 4)) {
            let _ = on_small_stack(|| compiled.render_within(&json!({}), &FUEL[..1], 4));
        }
    }
}

#[test]
fn longer_ones_are_refused() {
    let error = refused(&format!("{{{{ 1{} }}}}", "+1".repeat(50_000)));
    assert_eq!(error.code(), Code::InvalidModel);
    assert!(error.message().contains("a tag of the chat template has 100007 bytes"), "{error}");
    assert_eq!(error.detail().field.as_deref(), Some("chat_template"));
    let error = refused(&"a".repeat(MOST_SOURCE + 1));
    assert_eq!(error.code(), Code::InvalidModel);
    // Long texts are no long code.
    let text = "wörds, (and) | more - ".repeat(5000);
    assert_eq!(render_with(&format!("{{{{ '{text}' }}}}"), &FUEL, 1).unwrap(), text);
}

#[test]
fn values_nested_as_deep_as_fuel_allows_fit_a_quarter_of_the_stack() {
    let nest = |open: &str, close: &str, name: &str| {
        format!("{{% set ns.{name}={}ns.{name}{} %}}", open.repeat(60), close.repeat(60))
    };
    // A number of rounds that leaves some fuel for what is done at the end.
    for (open, close, rounds) in [
        ("[", "]", 620),
        ("(", ",)", 620),
        ("{'a':", "}", 310),
        ("namespace(a=", ")", 220),
        ("[1]+[", "]", 250),
        ("1*[", "]", 250),
    ] {
        for end in [
            "",
            "{% for i in range(100000) %}{% set ns.x=[ns.x] %}{% endfor %}",
            "{{ ns.x==ns.y }}",
            "{{ ns.x<ns.y }}",
            "{{ ns.x in [ns.y] }}",
            "{{ {ns.x:1} }}",
            "{{ [ns.x,ns.y]|unique|list|length }}",
            "{{ [ns.x,ns.y]|sort|length }}",
            "{{ ns.x~'' }}",
            "{{ ns.x }}",
            "{{ ns.x|tojson }}",
            "{{ ns.x|pprint }}",
            "{{ '{}'.format(ns.x) }}",
            "{{ '%s'|format(ns.x) }}",
            "{{ [ns.x]|join }}",
            "{{ [ns.x]|sum(start=[]) }}",
            "{{ [ns.x].index(ns.y) }}",
            "{{ [ns.x].count(ns.y) }}",
            "{{ ns.x|replace('a', 'b') }}",
        ] {
            let with_second = end.contains("ns.y");
            let rounds = if with_second { rounds / 2 } else { rounds };
            let again = if with_second { nest(open, close, "y") } else { String::new() };
            let source = format!(
                "{{% set ns=namespace(x=[],y=[]) %}}{{% for i in range({rounds}) %}}{}{again}{{% endfor %}}{end}",
                nest(open, close, "x"),
            );
            if let Err(error) = render_with(&source, &FUEL[..1], 4) {
                assert!(!error.message().contains("recursion limits"), "{error}");
            }
        }
    }
}

#[test]
fn what_is_made_by_a_number_is_paid_for_first() {
    for source in [
        "{{ [1]|tojson(indent=1000000000000) }}",
        "{{ 'a\nb'|indent(10000000000) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '%.1000000000f'|format(1.5) }}",
        "{{ '{:>10000000000}'.format('x') }}",
        "{{ '{:.4000000000f}'.format(1.5) }}",
        "{{ [1]|batch(100000000000,1)|list|length }}",
        "{{ [1]|slice(100000000000)|list|length }}",
        "{% set ns=namespace(x='xxxxxxxxxx') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}",
        "{% set ns=namespace(x='xxxxxxxxxx') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
        "{% set x='a'*1000000 %}{{ x.replace('a', x) }}",
        "{% set x='a'*1000000 %}{{ x|replace('a', x) }}",
        "{% set x='a'*1000000 %}{{ x.join(x) }}",
        "{% set x='a'*1000000 %}{{ x|join(x) }}",
        "{% set ns=namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x=[ns.x,ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        "{% set ns=namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x=[ns.x,ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns=namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x=[ns.x,ns.x] %}{% endfor %}{{ '{}'.format(ns.x) }}",
        "{% set ns=namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x=[ns.x,ns.x] %}{% endfor %}{{ ns.x|tojson(indent=200000) }}",
    ] {
        is_spent(&refused(source));
    }
}

#[test]
fn endless_templates_end() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% for i in range(100) %}{{ f(n + 1) if n < 20 }}{% endfor %}{% endmacro %}{{ f(0) }}",
    ] {
        is_spent(&refused(source));
    }
}

#[test]
fn a_long_conversation_needs_little_of_what_is_allowed() {
    let oracle: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/data/chat_oracle.json")).unwrap();
    let templates = oracle["templates"].as_object().unwrap();
    // A megabyte in a thousand messages.
    let messages: Vec<_> = (0..1000)
        .map(|index| {
            let role = if index % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": "words and more words. ".repeat(50)})
        })
        .collect();
    let variables = json!({"messages": messages, "add_generation_prompt": true, "bos_token": "<s>",
        "eos_token": "</s>", "tools": null, "documents": null});
    let mut rendered = 0;
    for (name, source) in templates {
        let compiled = compile(source.as_str().unwrap()).unwrap();
        match compiled.render_within(&variables, &[FUEL[2] / 16], 1) {
            Ok(text) => rendered += usize::from(text.len() > 500_000),
            Err(error) => assert!(!error.message().contains("too many steps"), "{name}: {error}"),
        }
    }
    assert!(rendered > templates.len() / 2, "{rendered} of {}", templates.len());
}
