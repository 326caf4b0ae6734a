//! A text search that ranks items by the words they share with the query; rare words count more (BM25).

use std::collections::HashMap;

use serde_json::Value;

/// An item to search for.
#[derive(Debug)]
pub(super) struct SearchItem {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) description: String,
    /// Additional search words.
    pub(super) keywords: String,
    /// The schema of its use.
    pub(super) schema: Option<Value>,
}

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An operation of workflows.
    Operation,
    /// An API of the catalogue.
    Api,
    /// An endpoint of an API.
    Endpoint,
    /// The id of a secret.
    Credential,
}

/// The words of all items.
#[derive(Debug)]
pub(super) struct Index<'a> {
    entries: Vec<Entry<'a>>,
    /// How many items contain a word.
    holders: HashMap<String, usize>,
    /// The average number of words per item.
    average: f64,
}

#[derive(Debug)]
struct Entry<'a> {
    item: &'a SearchItem,
    counts: HashMap<String, f64>,
    length: f64,
}

/// The usual BM25 parameters: how quickly repeated words stop adding to the score, and how much long texts are
/// penalised.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;
/// How much more a word in an id counts than one in a description.
const OF_AN_ID: f64 = 2.0;

// === impl Kind ===

impl Kind {
    /// The name in JSON.
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
    pub(super) fn new(items: &'a [SearchItem]) -> Self {
        let entries: Vec<Entry<'a>> = items.iter().map(Entry::new).collect();
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

    /// The `most` best items with their scores, the best first. Items without any word of the query are left out.
    pub(super) fn best(&self, query: &str, most: usize) -> Vec<(&'a SearchItem, f64)> {
        let mut terms = words(query);
        terms.sort_unstable();
        terms.dedup();
        let scored = self.entries.iter().map(|entry| {
            let score: f64 = terms.iter().map(|word| self.score(entry, word)).sum();
            (entry.item, (score * 1e4).round() / 1e4)
        });
        let mut found: Vec<_> = scored.filter(|(_, score)| *score > 0.0).collect();
        // The sort is stable, so equally good items stay in the order of the catalogue.
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
    fn new(item: &'a SearchItem) -> Self {
        let mut counts: HashMap<String, f64> = HashMap::new();
        let weighted = [
            (item.id.as_str(), OF_AN_ID),
            (&item.description, 1.0),
            (&item.keywords, 1.0),
        ];
        for (text, weight) in weighted {
            for word in words(text) {
                *counts.entry(word).or_default() += weight;
            }
        }
        Self {
            length: counts.values().sum(),
            item,
            counts,
        }
    }
}

/// The counts are small enough for a double to represent exactly.
#[allow(clippy::cast_precision_loss)]
fn count(of: usize) -> f64 {
    of as f64
}

/// The words of a text in lower case, without English plural endings. A compound name such as `FilterData` or `user_id`
/// gives each of its words, and the whole name.
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

    fn item(id: &str, description: &str) -> SearchItem {
        SearchItem {
            kind: Kind::Endpoint,
            id: id.to_owned(),
            description: description.to_owned(),
            keywords: String::new(),
            schema: None,
        }
    }

    fn check(query: &str, expected: &[&str]) {
        let items = [
            item("FilterData", "Keeps the elements of an array."),
            item("users GET /users", "All users of the company."),
            item("users DELETE /users/{id}", "Removes one user."),
            item("user_orders", "Orders by customer and date."),
            item("weather", "Tomorrow's sun and rain."),
        ];
        let index = Index::new(&items);
        let found: Vec<_> = index
            .best(query, 3)
            .iter()
            .map(|(item, _)| item.id.as_str())
            .collect();
        assert_eq!(found, expected, "{query}");
    }

    #[test]
    fn items_that_share_the_rarest_words_rank_first() {
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
    fn compound_names_are_split_into_words() {
        assert_eq!(
            words("FilterData of user_ids"),
            ["filterdata", "filter", "data", "of", "user", "id"]
        );
        assert_eq!(words("ÄpfelBirnen"), ["äpfelbirnen", "äpfel", "birnen"]);
        assert_eq!(words(" -- "), Vec::<String>::new());
    }
}
