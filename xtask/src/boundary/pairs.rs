//! The codes that the header promises for each function, against those that the C tests have brought it to.

use super::comments::Function;
use std::collections::{BTreeMap, BTreeSet};

/// What the tests note for a function that was refused there, in place of a code.
const PLACES: [&str; 5] = ["in-log", "in-progress", "in-wakeup", "in-drop", "in-child"];

/// Codes that every function may give.
const EVERYWHERE: [&str; 3] = ["OUT_OF_MEMORY", "WRONG_STATE", "INTERNAL"];

/// Where the two differ. `notes` has lines of a function's name and a code or place; and of whatever error a
/// function gave in a test, "gave:" with the code, and for INVALID_ARGUMENT "field:" with the field at fault.
pub fn compare(functions: &[Function], notes: &str) -> Vec<String> {
    let mut noted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, code) in notes.lines().filter_map(|line| line.split_once(' ')) {
        noted.entry(name).or_default().insert(code);
    }
    let mut faults = Vec::new();
    for function in functions.iter().filter(|function| function.is_fallible()) {
        let name = &function.name;
        let seen = noted.remove(name.as_str()).unwrap_or_default();
        let promised: BTreeSet<&str> = function.codes().into_iter().collect();
        for code in promised.difference(&seen) {
            faults.push(format!("  {name}: {code} is in its comment, and no C test brings it about"));
        }
        for note in seen.difference(&promised).filter(|note| !PLACES.contains(note)) {
            let unlisted = match note.split_once(':') {
                Some(("field", field)) => {
                    if !function.fields().any(|known| known == field) {
                        faults.push(format!(
                            "  {name}: an error's field is {field:?}, neither a parameter nor a struct's member"
                        ));
                    }
                    continue;
                }
                Some((_, code)) if promised.contains(code) || EVERYWHERE.contains(&code) => continue,
                Some((_, code)) => code,
                None => note,
            };
            faults
                .push(format!("  {name}: a C test brings about {unlisted}, which its comment does not list"));
        }
        // This one alone may be called in callbacks.
        if name != "mlxgen_cancel_request" {
            for place in PLACES.iter().filter(|place| !seen.contains(*place)) {
                faults.push(format!("  {name}: no C test calls it {place}"));
            }
        }
    }
    faults.extend(noted.keys().map(|name| format!("  {name}: noted by a C test, and not in the header")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(codes: &str) -> Function {
        Function {
            name: "mlxgen_f".into(),
            returns: "mlxgen_status".into(),
            comment: format!("Does.\nCodes: {codes}.\n"),
            ..Function::default()
        }
    }

    #[test]
    fn differences_are_told_both_ways() {
        let notes = "mlxgen_f OK\nmlxgen_f BUSY\nmlxgen_f OK\nmlxgen_g OK\n";
        let places: String = PLACES.iter().map(|place| format!("mlxgen_f {place}\n")).collect();
        let faults = compare(&[function("OK, IO")], &format!("{notes}{places}"));
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].contains("IO is in its comment"));
        assert!(faults[1].contains("brings about BUSY"));
        assert!(faults[2].contains("mlxgen_g"));
        let errors = "mlxgen_f gave:BUSY\nmlxgen_f gave:INTERNAL\nmlxgen_f field:out\nmlxgen_f gave:IO\nmlxgen_f field:part\n";
        let taking = Function { parameters: vec!["mlxgen_part **out".into()], ..function("OK, BUSY") };
        let faults = compare(&[taking], &format!("mlxgen_f OK\nmlxgen_f BUSY\n{errors}{places}"));
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(
            faults[0].contains("field is \"part\"") && faults[1].contains("brings about IO"),
            "{faults:?}"
        );
        let faults = compare(&[function("OK, BUSY")], "mlxgen_f OK\nmlxgen_f BUSY\nmlxgen_f in-log\n");
        assert_eq!(faults.len(), PLACES.len() - 1, "{faults:?}");
    }
}
