//! Texts that end a generation.

use crate::base::{Error, Result};

/// Watches generated text for stop texts.
///
/// The first match to be complete wins; of several complete at the same character, the one that
/// began first. So the result does not depend on how the text is split into pieces. What may be
/// the beginning of a match is held back.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What a piece of text led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Text that may be shown.
    No(String),
    /// The last text that may be shown, and the index of the stop text that follows it.
    Yes { text: String, stop: usize },
}

impl StopMatcher {
    /// INVALID_ARGUMENT with the index of an empty text.
    pub fn new(stops: &[String]) -> Result<Self> {
        if let Some(empty) = stops.iter().position(String::is_empty) {
            let position = empty as u64;
            return Err(Error::invalid_argument("a stop text is empty").field("stop").position(position));
        }
        Ok(StopMatcher { stops: stops.to_vec(), held: String::new() })
    }

    pub fn stop_text(&self, index: usize) -> Option<&str> {
        self.stops.get(index).map(String::as_str)
    }

    /// Takes the next piece. After a match nothing more may be pushed.
    pub fn push(&mut self, piece: &str) -> Stopped {
        let seen = self.held.len();
        self.held.push_str(piece);
        // Ends before `seen` were looked at when their text came.
        let first_match = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let from = (seen + 1).saturating_sub(stop.len());
            let begin = from + find(&self.held.as_bytes()[from..], stop.as_bytes())?;
            Some((begin + stop.len(), begin, index))
        });
        if let Some((_, begin, stop)) = first_match.min() {
            self.held.truncate(begin);
            return Stopped::Yes { text: std::mem::take(&mut self.held), stop };
        }
        let keep =
            self.stops.iter().map(|stop| overlap(self.held.as_bytes(), stop.as_bytes())).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Stopped::No(std::mem::replace(&mut self.held, rest))
    }

    /// What was held back, once it is known that nothing follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

fn find(text: &[u8], pattern: &[u8]) -> Option<usize> {
    text.windows(pattern.len()).position(|window| window == pattern)
}

/// Length of the longest end of `text` that is a proper beginning of `stop`. Both are UTF-8, so it
/// falls on character boundaries.
fn overlap(text: &[u8], stop: &[u8]) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest).rev().find(|length| text.ends_with(&stop[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops.iter().map(|stop| (*stop).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    /// Shown text and the stop that ended it, with the text given in these pieces.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = matcher(stops);
        let mut shown = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                Stopped::No(text) => shown += &text,
                Stopped::Yes { text, stop } => return (shown + &text, Some(stop)),
            }
        }
        (shown + &matcher.finish(), None)
    }

    /// The same by looking at every prefix of the whole text.
    fn naive(stops: &[&str], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let Some(prefix) = text.get(..end) else { continue };
            let matches = stops.iter().enumerate().filter(|(_, stop)| prefix.ends_with(**stop));
            if let Some((index, stop)) = matches.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index))
            {
                return (prefix[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn b56_a_stop_text_split_over_tokens_does_not_leak() {
        let text = "The quick brown fox";
        let bytes: Vec<&str> = (0..text.len()).map(|at| &text[at..=at]).collect();
        assert_eq!(run(&["own fox"], &bytes), ("The quick br".into(), Some(0)));
        assert_eq!(run(&["\nUser:", "own fox"], &[text]), ("The quick br".into(), Some(1)));
        assert_eq!(run(&["b"], &["The qu", "ick bro", "wn"]), ("The quick ".into(), Some(0)));
        assert_eq!(run(&["foxes"], &bytes), (text.into(), None));
    }

    #[test]
    fn only_the_possible_beginning_is_held() {
        let mut matcher = matcher(&["abcd", "cdx"]);
        assert_eq!(matcher.push("zzab"), Stopped::No("zz".into()));
        assert_eq!(matcher.push("c"), Stopped::No(String::new()));
        assert_eq!(matcher.push("e"), Stopped::No("abce".into()));
        assert_eq!(matcher.push("cd"), Stopped::No(String::new()));
        assert_eq!(matcher.push("y"), Stopped::No("cdy".into()));
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn empty_stop_texts_are_refused() {
        let error = StopMatcher::new(&["a".into(), String::new()]).unwrap_err();
        assert_eq!(error.detail().position, Some(1));
    }

    #[test]
    fn b56_every_split_of_every_text_equals_the_naive_search() {
        // Over the alphabet {a, b, é}: all texts up to six characters, every way of cutting them.
        let sets: [&[&str]; 8] = [
            &["ab"],
            &["aab", "b"],
            &["aba", "bab"],
            &["abé", "bé", "é"],
            &["éa", "aéa"],
            &["aaaa", "ab"],
            &["a", "ab"],
            &["bb", "abba", "bba"],
        ];
        let alphabet = ["a", "b", "é"];
        for length in 0..=6u32 {
            for number in 0..3usize.pow(length) {
                let characters: Vec<&str> =
                    (0..length).map(|digit| alphabet[number / 3usize.pow(digit) % 3]).collect();
                let text = characters.concat();
                for stops in sets {
                    let expected = naive(stops, &text);
                    for cuts in 0..1u32 << length.saturating_sub(1) {
                        let mut pieces = vec![String::new()];
                        for (at, character) in characters.iter().enumerate() {
                            if at > 0 && cuts >> (at - 1) & 1 == 1 {
                                pieces.push(String::new());
                            }
                            pieces.last_mut().unwrap().push_str(character);
                        }
                        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                        assert_eq!(run(stops, &pieces), expected, "{stops:?} {pieces:?}");
                    }
                }
            }
        }
    }
}
