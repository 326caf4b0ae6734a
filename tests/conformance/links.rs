//! Does every link of the documents to a file or a heading of this repository have its target?

use std::fs;
use std::path::{Path, PathBuf};

/// The documents that people read.
fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in [
        "",
        "docs",
        "docs/protocols",
        "bridge",
        "plugin",
        "models",
        "executor",
        "examples",
    ] {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The text without its code, in which headings and links are not what they seem.
fn prose(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let (mut is_code, mut prose) = (false, String::new());
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_code && !is_fence {
            prose.push_str(line);
            prose.push('\n');
        }
        is_code ^= is_fence;
    }
    prose
}

/// The anchors of the headings, as GitHub makes them.
fn anchors(prose: &str) -> Vec<String> {
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let kept: String = text.chars().filter(is_kept).collect();
        kept.replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_has_its_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut count, mut broken) = (0, Vec::new());
    for document in documents(&root) {
        let prose = prose(&document);
        let links = prose.split("](").skip(1);
        for target in links.filter_map(|rest| rest.split([')', ' ', '\n']).next()) {
            if target.contains("://") {
                continue;
            }
            count += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => document.clone(),
                file => document.with_file_name(file),
            };
            let is_there = path.exists();
            let has_anchor = || {
                anchors(&self::prose(&path))
                    .iter()
                    .any(|known| known == anchor)
            };
            if !is_there || (!anchor.is_empty() && !has_anchor()) {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(count > 100, "only {count} links were found");
}
