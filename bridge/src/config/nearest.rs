//! Suggestions for misspelt words.

/// The known word that a user-defined name probably misspells: it differs by one letter, or by two if it has 8 or more.
pub(super) fn meant<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if known.contains(&name) {
        return None;
    }
    known
        .iter()
        .map(|known| (strsim::osa_distance(name, known), *known))
        .filter(|(distance, known)| *distance <= if known.len() < 8 { 1 } else { 2 })
        .min()
        .map(|(_, known)| known)
}

/// The most similar known word, if it is similar enough.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
    let name = plain(name);
    known
        .iter()
        .map(|known| (strsim::levenshtein(&name, &plain(known)), *known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}
