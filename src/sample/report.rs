//! Log-probabilities for the caller.

use std::cmp::Ordering;

use crate::base::event::TokenLogprobs;

/// What is told of `token` and its `top` likeliest rivals, from normalised scores: descending,
/// equal values by ascending id.
pub fn report(logprobs: &[f32], token: u32, top: usize) -> TokenLogprobs {
    let chosen = logprobs.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let top = top.min(logprobs.len());
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(top + 1);
    for (id, &value) in logprobs.iter().enumerate() {
        if best.len() == top && best.last().is_none_or(|(_, least)| !ahead(value, *least)) {
            continue;
        }
        let place = best.partition_point(|(_, other)| !ahead(value, *other));
        best.insert(place, (id as u32, value));
        best.truncate(top);
    }
    TokenLogprobs { chosen, top: best }
}

/// Whether `a` stands before `b`; not-a-number stands last.
fn ahead(a: f32, b: f32) -> bool {
    match a.partial_cmp(&b) {
        Some(order) => order == Ordering::Greater,
        None => b.is_nan() && !a.is_nan(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_equals_by_id() {
        let row = [-1.0, -0.5, -3.0, -0.5, f32::NEG_INFINITY, -1.0];
        let told = report(&row, 2, 4);
        assert_eq!(told.chosen, -3.0);
        assert_eq!(told.top, [(1, -0.5), (3, -0.5), (0, -1.0), (5, -1.0)]);
    }

    #[test]
    fn more_rivals_than_tokens_and_none_at_all() {
        assert_eq!(report(&[-0.1, -2.0], 0, 20).top.len(), 2);
        assert!(report(&[-0.1, -2.0], 1, 0).top.is_empty());
    }

    #[test]
    fn not_a_number_comes_last() {
        assert_eq!(report(&[f32::NAN, -2.0, -1.0], 1, 2).top, [(2, -1.0), (1, -2.0)]);
    }
}
