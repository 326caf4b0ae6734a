//! Problems of a configuration: what is wrong, where, and the fix.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::path::ValuePath;

/// All problems of a configuration: errors and warnings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct ConfigErrors {
    file: String,
    problems: Vec<Problem>,
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The file position or the variable.
    #[serde(flatten)]
    pub site: SourceLocation,
    /// The path of the value, such as `routes[2].to[0].topic`; empty for the whole file.
    pub path: ValuePath,
    /// What is wrong, and the fix.
    pub message: String,
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The bridge does not start.
    Error,
    /// Legal, but probably not meant.
    Warning,
    /// A warning about something that may be missing on the bus. Only `check` without `--connect` shows it: `check
    /// --connect` and the running bridge look for it.
    #[serde(rename = "warning")]
    Unverified,
}

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum SourceLocation {
    /// In the file.
    File {
        /// From 1.
        line: u64,
        /// From 1, in characters.
        column: u64,
    },
    /// In the environment.
    Environment {
        /// The name of the variable.
        variable: String,
    },
    /// The file as a whole.
    Whole {},
}

// === impl ConfigErrors ===

impl ConfigErrors {
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            problems: Vec::new(),
        }
    }

    pub(super) fn unreadable(file: &str, error: &std::io::Error) -> Self {
        let mut problems = Self::new(file);
        problems.error(
            SourceLocation::Whole {},
            ValuePath::root(),
            format!("cannot be read: {error}"),
        );
        problems
    }

    pub(super) fn error(
        &mut self,
        site: SourceLocation,
        path: ValuePath,
        message: impl Into<String>,
    ) {
        self.push(Severity::Error, site, path, message.into());
    }

    pub(super) fn warning(
        &mut self,
        site: SourceLocation,
        path: ValuePath,
        message: impl Into<String>,
    ) {
        self.push(Severity::Warning, site, path, message.into());
    }

    pub(super) fn unverified(
        &mut self,
        site: SourceLocation,
        path: ValuePath,
        message: impl Into<String>,
    ) {
        self.push(Severity::Unverified, site, path, message.into());
    }

    fn push(&mut self, severity: Severity, site: SourceLocation, path: ValuePath, message: String) {
        self.problems.push(Problem {
            severity,
            site,
            path,
            message,
        });
    }

    /// Sorts by position in the file, then by variable. A problem that several checks found is reported once.
    pub(super) fn sort(&mut self) {
        let mut seen = BTreeSet::new();
        self.problems.retain(|problem| {
            let Problem {
                site,
                path,
                message,
                severity,
            } = problem;
            seen.insert((site.clone(), path.clone(), message.clone(), *severity))
        });
        self.problems
            .sort_by(|a, b| (&a.site, &a.path).cmp(&(&b.site, &b.path)));
    }

    pub(super) fn has_errors(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }

    pub(super) fn has_error_under(&self, path: &ValuePath) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == Severity::Error && problem.path.starts_with(path))
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// The first error, without its position: `bindings[0].run_as: there is no agent a`.
    pub(crate) fn first_error(&self) -> String {
        let mut problems = self.problems.iter();
        let error = problems.find(|problem| problem.severity == Severity::Error);
        error.map_or_else(String::new, |error| match error.path.is_root() {
            true => error.message.clone(),
            false => format!("{}: {}", error.path, error.message),
        })
    }

    /// The name of the file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Errors and warnings, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// One problem per line.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}", problem.in_file(&self.file))?;
        }
        Ok(())
    }
}

// === impl Problem ===

impl Problem {
    /// The problem as one line with the name of the file: `a2abus.yaml:12:5: routes[2].to[0].topic: …`.
    pub fn in_file<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        ProblemLine {
            problem: self,
            file,
        }
    }
}

struct ProblemLine<'a> {
    problem: &'a Problem,
    file: &'a str,
}

impl fmt::Display for ProblemLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem {
            severity,
            site,
            path,
            message,
        } = self.problem;
        match site {
            SourceLocation::File { line, column } => write!(f, "{}:{line}:{column}: ", self.file)?,
            SourceLocation::Environment { variable } => write!(f, "{variable}: ")?,
            SourceLocation::Whole {} => write!(f, "{}: ", self.file)?,
        }
        if *severity != Severity::Error {
            f.write_str("warning: ")?;
        }
        if !path.is_root() {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)
    }
}
