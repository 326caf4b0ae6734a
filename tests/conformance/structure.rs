//! Do the crates and files depend on each other as ARCHITECTURE.md draws it, and are functions short?
//!
//! A file depends on another when a path leads into it, in a `use` or anywhere else: from `crate`, `super` or `self`,
//! or from the name of one of its own submodules (`child::f`). Names that a file re-exports lead to where they are
//! defined. A file that re-exports from its submodules depends on them, so they take nothing that it defines itself.
//! Code for tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The crates of the workspace that are published.
const CRATES: [&str; 5] = ["plugin", "models", "transports", "executor", "bridge"];

/// The import circles that are left, by crate, each with its files in order. This list may only shrink: whoever breaks
/// a circle, or takes a file out of one, changes it here.
const CIRCLES: &[(&str, &[&str])] = &[];

/// Lines of the longest function outside tests.
const LONGEST: usize = 60;

/// The functions that are longer, as `crate::module::function`. This list may only shrink.
const LONG: &[&str] = &[];

/// The modules at the bottom of the bridge, each with those that it may import.
const LOWEST: &[(&str, &[&str])] = &[
    ("names", &[]),
    ("clock", &[]),
    ("metrics", &[]),
    ("config", &["names", "clock"]),
];

type Module = Vec<String>;

/// The modules of a crate that are files, each with the modules it depends on.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn no_file_imports_itself_through_others() {
    let mut found = Vec::new();
    for name in CRATES {
        for circle in circles(&imports(&source(name))) {
            found.push((name, circle));
        }
    }
    let known: Vec<(&str, Vec<String>)> = CIRCLES
        .iter()
        .map(|(name, files)| (*name, files.iter().map(ToString::to_string).collect()))
        .collect();
    assert!(
        found == known,
        "the import circles are not those of CIRCLES, which may only shrink. They are:\n{found:#?}"
    );
}

#[test]
fn functions_are_short() {
    let mut found = Vec::new();
    for name in CRATES {
        let texts = texts(name);
        let tests = test_only(&parsed(&texts));
        let is_test = |module: &Module| tests.iter().any(|test| module.starts_with(test));
        for (module, text) in texts.iter().filter(|(module, _)| !is_test(module)) {
            let long = functions(text)
                .into_iter()
                .filter(|(_, lines)| *lines > LONGEST);
            let path = [&[name.to_owned()], module.as_slice()].concat().join("::");
            found.extend(long.map(|(function, _)| format!("{path}::{function}")));
        }
    }
    assert!(
        found == LONG,
        "the functions of more than {LONGEST} lines are not those of LONG, which may only shrink. They are:\n{found:#?}"
    );
}

/// Clippy finds functions of the standard library that are newer than the `rust-version` of Cargo.toml, but no syntax.
/// `if let` in the guard of a match arm needs Rust 1.95.
#[test]
fn no_guard_of_a_match_arm_has_if_let() {
    for name in CRATES {
        for (module, text) in texts(name) {
            let words: Vec<&str> = text.split_whitespace().collect();
            let flat = words.join(" ");
            // The block of a statement opens before any arrow.
            let is_guard = |rest: &&str| {
                let block = rest.find(" {").unwrap_or(usize::MAX);
                rest.find(" => ").is_some_and(|arrow| arrow < block)
            };
            let guard = flat.split("if let ").skip(1).find(is_guard);
            assert_eq!(guard, None, "{name}::{}", module.join("::"));
        }
    }
}

#[test]
fn lengths_are_counted() {
    let text = "\
trait T {
    fn declared(
        &self,
    );
}
pub(super) const fn one() -> u8 { 1 }
impl T for () {
    async fn three(
    ) {
    }
}
#[cfg(test)]
mod tests {
    fn none() {
    }
}
#[cfg(test)]
pub(crate) fn of_tests()
{
}
fn two() {
}
";
    let found = functions(text);
    let found: Vec<(&str, usize)> = found.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(found, [("one", 1), ("three", 3), ("two", 2)]);
}

#[test]
fn the_lowest_modules_of_the_bridge_import_only_what_is_below_them() {
    let imports = imports(&source("bridge"));
    for (module, allowed) in LOWEST {
        let of_module = imports
            .iter()
            .filter(|(file, _)| file.first().is_some_and(|top| top == module));
        let mut seen = false;
        for (file, targets) in of_module {
            seen = true;
            for target in targets {
                let top = target.first().map_or("", String::as_str);
                assert!(
                    top == *module || allowed.contains(&top),
                    "{} imports {}, but {module} may import only {allowed:?}",
                    file.join("::"),
                    target.join("::")
                );
            }
        }
        assert!(seen, "there is no {module}");
    }
}

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let drawn = drawn();
    assert_eq!(
        drawn.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        CRATES.into()
    );
    for (name, allowed) in &drawn {
        let manifest = read(&root().join(name).join("Cargo.toml"));
        let dependencies: BTreeSet<String> = manifest
            .lines()
            .filter_map(|line| line.strip_prefix("a2abus-")?.split_once(['.', ' ', '=']))
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(&dependencies, allowed, "{name}/Cargo.toml");
        let mut used = BTreeSet::new();
        for file in source(name).into_values() {
            crates_in(file, &mut used);
        }
        used.remove(name);
        assert_eq!(&used, allowed, "{name}/src");
    }
}

#[test]
fn circles_are_found() {
    let crate_of = |files: &[(&str, &str)]| -> BTreeMap<Module, TokenStream> {
        let module = |path: &str| {
            path.split("::")
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        files
            .iter()
            .map(|(path, text)| (module(path), text.parse().unwrap()))
            .collect()
    };
    let found = |files: &[(&str, &str)]| circles(&imports(&crate_of(files)));
    let none: Vec<Vec<String>> = Vec::new();
    assert_eq!(
        found(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::B;"),
            ("b", "fn f() {}")
        ]),
        none
    );
    for b in [
        "use crate::{a::A as X};",
        "use super::a::{self, A};",
        "fn f() { crate::a::g(); }",
        "macro_rules! m { () => { $crate::a::A }; }",
        "mod inner { use super::super::a; }",
        "use crate::A;",
    ] {
        let files = [
            ("", "pub use a::A; mod a; mod b;"),
            ("a", "use crate::b;"),
            ("b", b),
        ];
        assert_eq!(found(&files), [["a", "b"]], "{b}");
    }
    for parent in [
        "mod child; use child::f;",
        "mod child; pub use child::f;",
        "mod child; use child::{self as other, f};",
        "mod child; fn f() { child::f(); }",
        "mod child; fn f() -> Vec<child::C> { Vec::<child::C>::new() }",
        "mod child; struct S(pub (child::C, u8));",
        "use child::f; mod child;",
    ] {
        let files = [("", "mod a;"), ("a", parent), ("a::child", "use super::T;")];
        assert_eq!(found(&files), [["a", "a::child"]], "{parent}");
    }
    for parent in [
        "mod child; fn f() { other::child::f(); <T as U>::child::f(); child.f(); }",
        "mod child; use ::child::f;",
        "mod child; fn f(x: ::child::T) {}",
        "mod child; mod inner { fn f() { child::f(); } }",
        "mod child; pub(in crate::a::child) fn f() {}",
    ] {
        let files = [("", "mod a;"), ("a", parent), ("a::child", "use super::T;")];
        assert_eq!(found(&files), none, "{parent}");
    }
    let facade = [
        ("", "mod a;"),
        ("a", "pub use one::T; mod one; mod two;"),
        ("a::one", ""),
        ("a::two", "use super::T;"),
    ];
    assert_eq!(found(&facade), none);
    let test_only = "#[cfg(test)] mod tests { use crate::a; } #[cfg(test)] mod more; // crate::a\nconst T: &str = \"crate::a\";";
    let files = [
        ("", ""),
        ("a", "use crate::b;"),
        ("b", test_only),
        ("b::more", "use crate::a;"),
    ];
    assert_eq!(found(&files), none);
}

// === what ARCHITECTURE.md draws ===

/// The crates that each crate uses: the lines `crate: crates it uses` of the first block marked `crates`.
fn drawn() -> BTreeMap<String, BTreeSet<String>> {
    let text = read(&root().join("ARCHITECTURE.md"));
    let (_, block) = text
        .split_once("```crates\n")
        .expect("ARCHITECTURE.md draws the crates");
    let (block, _) = block.split_once("```").unwrap();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    let line = |line: &str| {
        let (name, used) = line.split_once(':').unwrap();
        (name.trim().to_owned(), words(used))
    };
    block.lines().map(line).collect()
}

// === what the sources say ===

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a crate's library by their module path.
fn source(name: &str) -> BTreeMap<Module, TokenStream> {
    parsed(&texts(name))
}

fn parsed(texts: &BTreeMap<Module, String>) -> BTreeMap<Module, TokenStream> {
    let parse = |(module, text): (&Module, &String)| (module.clone(), text.parse().unwrap());
    texts.iter().map(parse).collect()
}

fn texts(name: &str) -> BTreeMap<Module, String> {
    let mut files = BTreeMap::new();
    add_folder(&root().join(name).join("src"), &Module::new(), &mut files);
    files
}

fn add_folder(folder: &Path, parent: &Module, files: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let module = || [parent.as_slice(), &[name.to_owned()]].concat();
        if path.is_dir() {
            add_folder(&path, &module(), files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "main" {
            let module = if name == "lib" {
                Module::new()
            } else {
                module()
            };
            files.insert(module, read(&path));
        }
    }
}

/// The crates of the workspace that are named in the tokens.
fn crates_in(tokens: TokenStream, used: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => crates_in(group.stream(), used),
            TokenTree::Ident(name) => {
                used.extend(name.to_string().strip_prefix("a2abus_").map(str::to_owned))
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// The paths in one file.
#[derive(Default)]
struct Paths {
    /// All of them, from the root of the crate. Those that begin outside it end up in the file itself.
    named: Vec<Module>,
    /// What each name that is imported stands for, relative to the file.
    imported: BTreeMap<String, Module>,
    /// The submodules that only tests have.
    test_only: Vec<Module>,
}

fn paths(files: &BTreeMap<Module, TokenStream>) -> BTreeMap<&Module, Paths> {
    let mut paths = BTreeMap::new();
    for (module, tokens) in files {
        let mut of_file = Paths::default();
        of_file.read(tokens.clone(), module);
        paths.insert(module, of_file);
    }
    paths
}

/// The modules that only tests have.
fn test_only(files: &BTreeMap<Module, TokenStream>) -> Vec<Module> {
    paths(files)
        .into_values()
        .flat_map(|file| file.test_only)
        .collect()
}

fn imports(files: &BTreeMap<Module, TokenStream>) -> Imports {
    let mut paths = paths(files);
    let test_only = test_only(files);
    paths.retain(|module, _| !test_only.iter().any(|test| module.starts_with(test)));
    let targets = |module: &Module, of_file: &Paths| {
        let targets = of_file
            .named
            .iter()
            .map(|path| target(path.clone(), &paths));
        targets.filter(|target| target != module).collect()
    };
    paths
        .iter()
        .map(|(module, of_file)| ((*module).clone(), targets(module, of_file)))
        .collect()
}

/// The file that a path leads into.
fn target(mut path: Module, paths: &BTreeMap<&Module, Paths>) -> Module {
    // As many re-exports as a path may lead over.
    for _ in 0..8 {
        let mut file = path.clone();
        while !paths.contains_key(&file) {
            file.pop();
        }
        let imported = path
            .get(file.len())
            .and_then(|name| paths[&file].imported.get(name));
        match imported {
            Some(imported) if *imported != path => path = imported.clone(),
            _ => return file,
        }
    }
    path
}

impl Paths {
    fn read(&mut self, tokens: TokenStream, module: &Module) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        while let Some((token, after)) = rest.split_first() {
            let here = rest;
            rest = after;
            match (token, after) {
                (TokenTree::Punct(hash), [TokenTree::Group(attribute), after @ ..])
                    if hash.as_char() == '#'
                        && attribute.stream().to_string().replace(' ', "") == "cfg(test)" =>
                {
                    rest = self.skip_item(after, module);
                }
                (
                    TokenTree::Ident(word),
                    [TokenTree::Ident(name), TokenTree::Group(body), after @ ..],
                ) if word == "mod" && body.delimiter() == Delimiter::Brace => {
                    self.read(
                        body.stream(),
                        &[module.as_slice(), &[name.to_string()]].concat(),
                    );
                    rest = after;
                }
                (TokenTree::Ident(word), _) if word == "use" => rest = self.read_use(after, module),
                (TokenTree::Ident(word), [TokenTree::Group(scope), after @ ..])
                    if word == "pub" && is_path_of_scope(scope) =>
                {
                    rest = after;
                }
                (TokenTree::Ident(word), _) => {
                    let (path, after) = path_at(rest, vec![word.to_string()]);
                    if path.len() > 1 {
                        self.named.extend(absolute(&path, module));
                    }
                    rest = after;
                }
                // The rest of a path, or the name of another crate.
                (TokenTree::Punct(first), [TokenTree::Punct(second), TokenTree::Ident(_), ..])
                    if first.as_char() == ':' && second.as_char() == ':' =>
                {
                    rest = path_at(here, Module::new()).1;
                }
                (TokenTree::Group(group), _) => self.read(group.stream(), module),
                _ => {}
            }
        }
    }

    /// Passes over an item that only tests have.
    fn skip_item<'a>(&mut self, item: &'a [TokenTree], module: &Module) -> &'a [TokenTree] {
        let end = item.iter().position(|token| match token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';',
            _ => false,
        });
        let (item, rest) = item.split_at(end.map_or(item.len(), |end| end + 1));
        if let [
            ..,
            TokenTree::Ident(word),
            TokenTree::Ident(name),
            TokenTree::Punct(_),
        ] = item
            && word == "mod"
        {
            self.test_only
                .push([module.as_slice(), &[name.to_string()]].concat());
        }
        rest
    }

    fn read_use<'a>(&mut self, tokens: &'a [TokenTree], module: &Module) -> &'a [TokenTree] {
        let is_end =
            |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';');
        let end = tokens.iter().position(is_end).unwrap_or(tokens.len());
        let (tree, rest) = tokens.split_at(end);
        if matches!(tree, [TokenTree::Punct(_), ..]) {
            return rest; // `use ::name` leads out of the crate
        }
        let mut leaves = Vec::new();
        leaves_of(tree, &Module::new(), &mut leaves);
        for (path, name) in leaves {
            if let Some(path) = absolute(&path, module) {
                self.named.push(path.clone());
                self.imported.insert(name, path);
            }
        }
        rest
    }
}

/// Is it the `(in path)` of a visibility?
fn is_path_of_scope(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    matches!(first, Some(TokenTree::Ident(word)) if word == "in")
}

/// A path that goes on with `::name`, and what follows it.
fn path_at(mut tokens: &[TokenTree], mut path: Module) -> (Module, &[TokenTree]) {
    while let [
        TokenTree::Punct(first),
        TokenTree::Punct(second),
        TokenTree::Ident(name),
        rest @ ..,
    ] = tokens
        && first.as_char() == ':'
        && second.as_char() == ':'
    {
        path.push(name.to_string());
        tokens = rest;
    }
    (path, tokens)
}

/// Every path of the tree of a `use`, with the name it gets.
fn leaves_of(tree: &[TokenTree], prefix: &Module, leaves: &mut Vec<(Module, String)>) {
    let mut path = prefix.clone();
    let mut renamed = None;
    let mut rest = tree;
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        match token {
            TokenTree::Ident(word) if word == "as" => {
                renamed = after.first().map(ToString::to_string);
                break;
            }
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Group(group) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
                for branch in inside.split(is_comma).filter(|branch| !branch.is_empty()) {
                    leaves_of(branch, &path, leaves);
                }
                return;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
        path.pop();
    }
    let name = renamed.or_else(|| path.last().cloned());
    leaves.extend(name.map(|name| (path, name)));
}

/// A path from the root of the crate.
fn absolute(path: &[String], module: &Module) -> Option<Module> {
    let (first, mut rest) = path.split_first()?;
    let mut whole = match first.as_str() {
        "crate" => Module::new(),
        "self" => module.clone(),
        "super" => module.split_last()?.1.to_vec(),
        name => [module.as_slice(), &[name.to_owned()]].concat(),
    };
    while let Some((word, after)) = rest.split_first().filter(|(word, _)| *word == "super") {
        debug_assert_eq!(word, "super");
        whole.pop();
        rest = after;
    }
    whole.extend_from_slice(rest);
    Some(whole)
}

// === lengths ===

/// The functions of a formatted file without those of its tests, each with its lines from `fn` to the last brace.
fn functions(text: &str) -> Vec<(String, usize)> {
    let mut lines: Vec<&str> = text.lines().collect();
    while let Some(at) = lines
        .iter()
        .position(|line| line.trim_start() == "#[cfg(test)]")
    {
        let end = end_of_item(&lines, at + 1);
        lines.drain(at..=end);
    }
    let has_body = |at: usize, end: usize| lines[at..=end].iter().any(|line| line.contains('{'));
    (0..lines.len())
        .filter_map(|at| Some((function_name(lines[at])?, at, end_of_item(&lines, at))))
        .filter(|(_, at, end)| has_body(*at, *end))
        .map(|(name, at, end)| (name.to_owned(), end + 1 - at))
        .collect()
}

/// The name of the function that a line begins.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    if let Some(rest) = words.strip_prefix("pub") {
        words = match rest.strip_prefix('(') {
            Some(scope) => scope.split_once(") ")?.1,
            None => rest.strip_prefix(' ')?,
        };
    }
    for word in ["const ", "async ", "unsafe "] {
        words = words.strip_prefix(word).unwrap_or(words);
    }
    let rest = words.strip_prefix("fn ")?;
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    Some(&rest[..rest.find(|c| !is_name(c))?])
}

/// The last line of the item that begins here: it ends a line with `;` or `}`, indented as its first.
fn end_of_item(lines: &[&str], at: usize) -> usize {
    let indent = lines[at].len() - lines[at].trim_start().len();
    let is_end = |line: &&str| {
        let own = line.len() - line.trim_start().len() == indent;
        own && (line.ends_with(';') || line.ends_with('}'))
    };
    let end = lines[at..].iter().position(is_end);
    end.map_or(lines.len() - 1, |end| at + end)
}

// === circles ===

/// The groups of files in which each imports every other, directly or not, in order.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = imports
        .keys()
        .map(|module| (module, reached_from(module, imports)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, reached_from_it) in &reached {
        let circle: Vec<String> = reached_from_it
            .iter()
            .filter(|other| reached[*other].contains(module))
            .map(|module| module.join("::"))
            .collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reached_from<'a>(module: &Module, imports: &'a Imports) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = imports[module].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(&imports[module]);
        }
    }
    reached
}
