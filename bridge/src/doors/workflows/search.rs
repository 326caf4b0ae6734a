//! Which of some things fits a question best? By the words they share, the rarer the better (BM25).

use std::collections::HashMap;

use serde_json::Value;

/// Something that can be found.
#[derive(Debug)]
pub(super) struct SearchItem {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) description: String,
    /// Further words that it is found by.
    pub(super) words: String,
    /// How it is used.
    pub(super) schema: Option<Value>,
}

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An operation of workflows.
    Operation,
    /// An API of the catalogue.
    Api,
    /// What an API offers.
    Endpoint,
    /// The id of a secret.
    Credential,
}

/// The words of some things.
#[derive(Debug)]
pub(super) struct Index<'a> {
    entries: Vec<Entry<'a>>,
    /// In how many things a word is.
    holders: HashMap<String, usize>,
    /// Words of a thing, on average.
    average: f64,
}

#[derive(Debug)]
struct Entry<'a> {
    thing: &'a SearchItem,
    counts: HashMap<String, f64>,
    length: f64,
}

/// How little more a word says each time it is there again, and how much long texts are held against things. The usual
/// values of BM25.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;
/// How much more a word says in an id than in a description.
const OF_AN_ID: f64 = 2.0;

// === impl Kind ===

impl Kind {
    /// The word on the wire.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Api => "api",
            Self::Endpoint => "endpoint",
            Self::Credential => "credential",
        }
    }
}

// === impl Index ===

impl<'a> Index<'a> {
    pub(super) fn new(things: &'a [SearchItem]) -> Self {
        let entries: Vec<Entry<'a>> = things.iter().map(Entry::new).collect();
        let mut holders: HashMap<String, usize> = HashMap::new();
        for word in entries.iter().flat_map(|entry| entry.counts.keys()) {
            *holders.entry(word.clone()).or_default() += 1;
        }
        let total: f64 = entries.iter().map(|entry| entry.length).sum();
        Self {
            average: total / count(entries.len().max(1)),
            entries,
            holders,
        }
    }

    /// At most so many, the best first, each with its score; none that has no word of the query.
    pub(super) fn best(&self, query: &str, most: usize) -> Vec<(&'a SearchItem, f64)> {
        let mut wanted = words(query);
        wanted.sort_unstable();
        wanted.dedup();
        let scored = self.entries.iter().map(|entry| {
            let score: f64 = wanted.iter().map(|word| self.score(entry, word)).sum();
            (entry.thing, (score * 1e4).round() / 1e4)
        });
        let mut found: Vec<_> = scored.filter(|(_, score)| *score > 0.0).collect();
        // Stable: what is equally good stays in the order of the catalogue.
        found.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        found.truncate(most);
        found
    }

    fn score(&self, entry: &Entry<'_>, word: &str) -> f64 {
        let (Some(times), Some(holders)) = (entry.counts.get(word), self.holders.get(word)) else {
            return 0.0;
        };
        let (all, holders) = (count(self.entries.len()), count(*holders));
        let rarity = (1.0 + (all - holders + 0.5) / (holders + 0.5)).ln();
        let length = 1.0 - LENGTH + LENGTH * entry.length / self.average;
        rarity * times * (SATURATION + 1.0) / (times + SATURATION * length)
    }
}

impl<'a> Entry<'a> {
    fn new(thing: &'a SearchItem) -> Self {
        let mut counts: HashMap<String, f64> = HashMap::new();
        let weighted = [
            (thing.id.as_str(), OF_AN_ID),
            (&thing.description, 1.0),
            (&thing.words, 1.0),
        ];
        for (text, weight) in weighted {
            for word in words(text) {
                *counts.entry(word).or_default() += weight;
            }
        }
        Self {
            length: counts.values().sum(),
            thing,
            counts,
        }
    }
}

/// What is counted here is far below what a double holds exactly.
#[allow(clippy::cast_precision_loss)]
fn count(of: usize) -> f64 {
    of as f64
}

/// The words of a text in lower case, without the endings of English plurals. A name of several words, as `FilterData` or
/// `user_id`, is each of them, and the whole.
fn words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for whole in text.split(|c: char| !c.is_alphanumeric()) {
        let parts = humps(whole);
        if parts.len() > 1 {
            found.push(stem(whole));
        }
        found.extend(parts.into_iter().map(stem));
    }
    found.retain(|word| !word.is_empty());
    found
}

/// `FilterData` is `Filter` and `Data`.
fn humps(word: &str) -> Vec<&str> {
    let mut starts = vec![0];
    let mut before: Option<char> = None;
    for (index, c) in word.char_indices() {
        if c.is_uppercase() && before.is_some_and(char::is_lowercase) {
            starts.push(index);
        }
        before = Some(c);
    }
    let ends = starts.iter().skip(1).copied().chain([word.len()]);
    let spans = starts.iter().zip(ends);
    spans
        .filter_map(|(start, end)| word.get(*start..end))
        .collect()
}

fn stem(word: &str) -> String {
    let word = word.to_lowercase();
    let plural = word.len() > 2 && word.ends_with('s') && !word.ends_with("ss");
    match word.strip_suffix('s') {
        Some(singular) if plural => singular.to_owned(),
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thing(id: &str, description: &str) -> SearchItem {
        SearchItem {
            kind: Kind::Endpoint,
            id: id.to_owned(),
            description: description.to_owned(),
            words: String::new(),
            schema: None,
        }
    }

    fn check(query: &str, expected: &[&str]) {
        let things = [
            thing("FilterData", "Keeps the elements of an array."),
            thing("users GET /users", "All users of the company."),
            thing("users DELETE /users/{id}", "Removes one user."),
            thing("user_orders", "Orders by customer and date."),
            thing("weather", "Tomorrow's sun and rain."),
        ];
        let index = Index::new(&things);
        let found: Vec<_> = index
            .best(query, 3)
            .iter()
            .map(|(thing, _)| thing.id.as_str())
            .collect();
        assert_eq!(found, expected, "{query}");
    }

    #[test]
    fn what_shares_the_rarest_words_comes_first() {
        check("filter", &["FilterData"]);
        check("filterdata", &["FilterData"]);
        check(
            "remove a user",
            &[
                "users DELETE /users/{id}",
                "users GET /users",
                "user_orders",
            ],
        );
        check("ORDERS", &["user_orders"]);
        check("rains", &["weather"]);
        check("", &[]);
        check("nothing of this", &["users GET /users", "FilterData"]);
        check("???", &[]);
    }

    #[test]
    fn names_are_their_words() {
        assert_eq!(
            words("FilterData of user_ids"),
            ["filterdata", "filter", "data", "of", "user", "id"]
        );
        assert_eq!(words("ÄpfelBirnen"), ["äpfelbirnen", "äpfel", "birnen"]);
        assert_eq!(words(" -- "), Vec::<String>::new());
    }
}
