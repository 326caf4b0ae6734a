//! Which known word was meant?

/// The known word that a free name was meant to be: one that differs from it by a letter, or by two where it is long.
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

/// The known word that differs least, when it differs little enough to have been meant.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
    let word = plain(word);
    known
        .iter()
        .map(|known| (strsim::levenshtein(&word, &plain(known)), *known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}
