//! Does every document that a comment or another document names exist, and every section it cites of it? And every
//! function that ARCHITECTURE.md names on its walks through the code?
//!
//! The one form is the path of the document and its sections: `docs/design.md §7.1`, `docs/design.md §7.1 and §T4`. In
//! `docs/`, a section without a path is one of the same document. A section is a numbered heading; a numbered decision
//! is a heading too, the first cell of a table row, or bold text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What a text says of one document.
struct Named<'a> {
    path: &'a str,
    sections: Vec<&'a str>,
}

/// The sections of each document that was read.
#[derive(Default)]
struct Documents(BTreeMap<PathBuf, BTreeSet<String>>);

#[test]
fn every_citation_has_its_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().unwrap();
    let mut files = Vec::new();
    collect(&root, &mut files);
    let (mut documents, mut cited, mut wrong) = (Documents::default(), 0, Vec::new());
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for (line, paragraph) in paragraphs(file, &text) {
            let at = format!("{}:{line}", file.strip_prefix(&root).unwrap().display());
            let problems = check(&root, file, &paragraph, &mut documents, &mut cited);
            wrong.extend(
                problems
                    .into_iter()
                    .map(|problem| format!("{at}: {problem}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cited > 100, "only {cited} citations were found");
}

/// Each line of a walk has the path of a file, or that of the line above, and functions in it: `file.rs  A::f, g: a
/// note`.
#[test]
fn every_function_of_a_walk_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let walks = text.split("```walk\n").skip(1);
    let lines = walks.flat_map(|walk| walk.split("```").next().unwrap().lines());
    let (mut source, mut missing, mut found) = (String::new(), Vec::new(), 0);
    for line in lines {
        let (path, names) = line.split_once(' ').unwrap();
        if !path.is_empty() {
            source = fs::read_to_string(root.join(path)).unwrap_or_default();
        }
        let names = names.split_once(": ").map_or(names, |(names, _)| names);
        for name in names.split(", ").map(str::trim) {
            let function = name.rsplit("::").next().unwrap();
            let is_there = ["(", "<"].map(|next| source.contains(&format!("fn {function}{next}")));
            if is_there.contains(&true) {
                found += 1;
            } else {
                missing.push(format!("{name} in: {line}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(found > 40, "only {found} functions were found");
}

#[test]
fn citations_are_read_as_they_are_written() {
    let (named, own) = read("as docs/a.md §1.2, §D3 and §4 say; see [b.md](../b.md) §7.");
    let named: Vec<_> = named.into_iter().map(|n| (n.path, n.sections)).collect();
    let expected = vec![
        ("docs/a.md", vec!["1.2", "D3", "4"]),
        ("b.md", vec![]),
        ("../b.md", vec!["7"]),
    ];
    assert_eq!((named, own), (expected, vec![]));
    assert_eq!(read("by §D5, whatever x.mdx is").1, ["D5"]);
    let sections = sections("# 1 A\n## 1.2. B\n| D3 | x |\n- **D4 C** is\n```\n# 9\n```\n");
    assert_eq!(sections, ["1", "1.2", "D3", "D4"].map(String::from).into());
    for old in [
        "`e2a` section 3",
        "by decision D5.",
        "`a-b` sections 1 and 2",
    ] {
        assert!(old_form(old).is_some(), "{old}");
    }
    assert_eq!(
        old_form("the `calls` section, JSON-RPC 2.0 section 6, docs/a.md §D5"),
        None
    );
}

/// Every source file, document and manifest below a directory.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or(".");
        let is_link = path.is_symlink();
        if is_link || name.starts_with('.') || ["target", "corpus", "node_modules"].contains(&name)
        {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path
            .extension()
            .is_some_and(|ext| ["rs", "md", "toml"].iter().any(|e| ext == *e))
        {
            files.push(path);
        }
    }
}

/// The prose of a file with the line it begins in: comments, or all of a document. A paragraph ends at a line without
/// prose.
fn paragraphs(file: &Path, text: &str) -> Vec<(usize, String)> {
    let kind = file.extension().and_then(|ext| ext.to_str());
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let prose = match kind {
            Some("rs") => comment(line),
            Some("toml") => line.strip_prefix('#').unwrap_or_default(),
            _ => line,
        };
        let prose = prose.trim();
        match found.last_mut() {
            _ if prose.is_empty() => goes_on = false,
            Some((_, paragraph)) if goes_on => {
                paragraph.push(' ');
                paragraph.push_str(prose);
            }
            _ => {
                found.push((number, prose.to_owned()));
                goes_on = true;
            }
        }
    }
    found
}

/// The comment of a line of code.
fn comment(line: &str) -> &str {
    let comment = match line.split_once(" // ") {
        _ if line.starts_with("//") => line,
        Some((_, comment)) => comment,
        None => "",
    };
    comment.trim_start_matches(['/', '!'])
}

/// What is wrong with the citations of a paragraph.
fn check(
    root: &Path,
    file: &Path,
    paragraph: &str,
    documents: &mut Documents,
    cited: &mut usize,
) -> Vec<String> {
    let (named, own) = read(paragraph);
    let mut wrong = Vec::new();
    // A pattern such as `*.md` names no document.
    let named = named.into_iter().filter(|named| named.path != ".md");
    for Named { path, sections } in named {
        let found = file
            .ancestors()
            .skip(1)
            .map(|directory| directory.join(path));
        let Some(document) = found
            .take_while(|at| at.starts_with(root))
            .find(|at| at.is_file())
        else {
            wrong.push(format!("there is no document {path}"));
            continue;
        };
        *cited += sections.len();
        let missing = sections
            .into_iter()
            .filter(|id| !documents.have(&document, id));
        wrong.extend(missing.map(|id| format!("{path} has no section {id}")));
    }
    let is_document = file.starts_with(root.join("docs"));
    for id in own {
        *cited += 1;
        if !is_document {
            wrong.push(format!(
                "§{id} without a document: write docs/NAME.md §{id}"
            ));
        } else if !documents.have(file, id) {
            wrong.push(format!("there is no section {id} in this document"));
        }
    }
    if file.extension().is_some_and(|ext| ext == "rs") {
        wrong.extend(old_form(paragraph).map(|old| format!("{old}: write docs/NAME.md §ID")));
    }
    wrong
}

/// The documents that a text names with their sections, and the sections that it names alone.
fn read(text: &str) -> (Vec<Named<'_>>, Vec<&str>) {
    const EXTENSION: &str = ".md";
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let (mut named, mut own, mut rest) = (Vec::new(), Vec::new(), text);
    loop {
        let document = rest.find(EXTENSION).map(|at| at + EXTENSION.len());
        let (until, after) = rest.split_at(document.unwrap_or(rest.len()));
        own.extend(until.split('§').skip(1).map(id_of));
        if document.is_none() {
            return (named, own);
        }
        rest = after;
        let start = until.rfind(|c| !is_path(c)).map_or(0, |at| {
            at + until[at..].chars().next().map_or(1, char::len_utf8)
        });
        let path = &until[start..];
        let is_longer = rest.starts_with(|c: char| c.is_ascii_alphanumeric());
        if is_longer || path.starts_with("//") {
            continue;
        }
        let mut sections = Vec::new();
        rest = rest.trim_start_matches([')', '`']);
        while let Some(next) = [" §", ", §", " and §", " to §"]
            .iter()
            .find_map(|s| rest.strip_prefix(s))
        {
            let id = id_of(next);
            sections.push(id);
            rest = &next[id.len()..];
        }
        named.push(Named { path, sections });
    }
}

/// The number a text begins with.
fn id_of(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    text[..end.unwrap_or(text.len())].trim_end_matches('.')
}

/// A citation of a document without its path: a word in backticks with a section, or a decision alone.
fn old_form(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split(' ').collect();
    for (at, word) in words.iter().enumerate() {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_quoted = word.starts_with('`') && word.ends_with('`') && bare.len() > 1;
        let has_section = words
            .get(at + 1)
            .is_some_and(|next| next.starts_with("section"))
            && words
                .get(at + 2)
                .is_some_and(|next| next.starts_with(|c: char| c.is_ascii_digit()));
        if is_quoted && has_section {
            return Some(format!("{word} section"));
        }
        let is_decision = bare.strip_prefix('D').is_some_and(is_number);
        if is_decision && !word.contains('§') {
            return Some(bare.to_owned());
        }
    }
    None
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// The sections of a document.
fn sections(text: &str) -> BTreeSet<String> {
    let (mut found, mut is_code) = (BTreeSet::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let bold = line.split("**").skip(1).step_by(2);
        let heading = line
            .strip_prefix('#')
            .map(|rest| rest.trim_start_matches('#'));
        let cell = line
            .strip_prefix('|')
            .and_then(|rest| rest.split('|').next());
        let number = |text: &str| id_of(text.trim()).to_owned();
        found.extend(
            heading
                .map(number)
                .filter(|id| id.contains(|c: char| c.is_ascii_digit())),
        );
        let is_decision = |id: &String| {
            let digits = id.strip_prefix(|c: char| c.is_ascii_uppercase());
            digits.is_some_and(is_number)
        };
        found.extend(bold.chain(cell).map(number).filter(is_decision));
    }
    found
}

// === impl Documents ===

impl Documents {
    fn have(&mut self, document: &Path, section: &str) -> bool {
        let known = self.0.entry(document.to_owned());
        let known = known.or_insert_with(|| sections(&fs::read_to_string(document).unwrap()));
        known.contains(section)
    }
}
