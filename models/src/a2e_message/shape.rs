//! A description of the members of each type, for schemas, forms and generators.

/// A member that a type names.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Its name on the wire.
    pub name: &'static str,
    /// The shape of its value.
    pub shape: Shape,
    /// The value if it is left out.
    pub presence: Presence,
}

/// The value if a member is left out.
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

/// The valid values of a member, before the coercions of docs/protocols/a2e-messages.md §1.3.
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
    /// An object whose members all have this shape.
    Map(&'static Shape),
    /// This, or null.
    Nullable(&'static Shape),
    /// An object with these members, and others. A function, because shapes may be recursive.
    Record(fn() -> &'static [Member]),
    /// A whole message of this type, including base keys, with these members.
    Message(&'static str, fn() -> &'static [Member]),
}
