//! What the types look like: a description of their members, for schemas, forms and generators.

/// A member that a type names.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Its name on the wire.
    pub name: &'static str,
    /// The shape of its value.
    pub shape: Shape,
    /// What holds where it is left out.
    pub presence: Presence,
}

/// What holds where a member is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The message is invalid.
    Required,
    /// The default, as the tables of the source spell it; `now` and `new_id` are left to the
    /// reader.
    Default(&'static str),
}

impl Presence {
    /// Of the default in a table, if there is one.
    pub(super) const fn of(default: &[&'static str]) -> Self {
        match default {
            [] => Self::Required,
            [default, ..] => Self::Default(default),
        }
    }
}

/// What a member may hold, before the coercions of docs/protocols/a2e-messages.md §1.3.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A string.
    Text,
    /// A Boolean.
    Boolean,
    /// An integer of any size.
    Integer,
    /// A finite number.
    Float,
    /// Anything.
    Any,
    /// Any object.
    Object,
    /// One of these strings.
    Word(&'static [&'static str]),
    /// An array of these.
    List(&'static Shape),
    /// An array of two of these.
    Pair(&'static Shape),
    /// An object whose members all hold this.
    Map(&'static Shape),
    /// This, or null.
    Nullable(&'static Shape),
    /// An object with these members, and others. A function, since shapes may hold themselves.
    Record(fn() -> &'static [Member]),
    /// A whole message of this type, base keys and all, with these members.
    Message(&'static str, fn() -> &'static [Member]),
}
