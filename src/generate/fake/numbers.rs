//! Scores that are a hash of the whole context.

use crate::base::event::TokenLogprobs;
use crate::base::options::Sampling;
use crate::generate::runtime::LogprobReport;

/// Hash of a context that is `before` followed by `token`.
pub fn extend(before: u64, token: u32) -> u64 {
    mix(before ^ (u64::from(token) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// In [0, 1).
fn unit(x: u64) -> f32 {
    (mix(x) >> 40) as f32 / (1u64 << 24) as f32
}

/// Scores after a context. Printable characters are likelier than other tokens; `never` are out of
/// reach; `forced` is certain.
pub fn logits(context: u64, vocabulary: u32, never: &[u32], forced: Option<u32>) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..vocabulary)
        .map(|id| {
            let bonus = if (32..127).contains(&id) { 16.0 } else { 0.0 };
            bonus + 8.0 * unit(context ^ (u64::from(id) << 32))
        })
        .collect();
    for id in never {
        logits[*id as usize] = -100.0;
    }
    if let Some(id) = forced {
        logits[id as usize] = 1000.0;
    }
    logits
}

/// The token of the step: the greatest score, or with a temperature a draw that depends on the
/// seed, the step and the scores only.
pub fn sample(logits: &[f32], sampling: &Sampling, step: u64) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, logit) in logits.iter().enumerate() {
        let score = if sampling.temperature > 0.0 {
            let draw = unit(mix(sampling.seed ^ mix(step + 1)) ^ id as u64).max(f32::MIN_POSITIVE);
            logit / sampling.temperature - (-draw.ln()).ln()
        } else {
            *logit
        };
        if score > best.1 {
            best = (id as u32, score);
        }
    }
    best.0
}

pub fn logprobs(logits: &[f32], chosen: u32, report: LogprobReport) -> Option<TokenLogprobs> {
    if !report.chosen {
        return None;
    }
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - greatest).exp()).sum();
    let normalised = |id: u32| logits[id as usize] - greatest - sum.ln();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    ids.truncate(report.top as usize);
    Some(TokenLogprobs {
        chosen: normalised(chosen),
        top: ids.into_iter().map(|id| (id, normalised(id))).collect(),
    })
}
