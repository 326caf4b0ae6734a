//! Enumerations that have a word on the wire for each value.

/// An enumeration with a word on the wire for each value.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$value_doc:meta])* $value:ident = $word:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_doc])* $value),+
        }

        impl $name {
            /// Every value, in the order of the source.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The word on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word),+
                }
            }
        }

        impl $crate::a2e_workflow::words::Words for $name {
            const VALUES: &'static [Self] = Self::ALL;

            fn word(self) -> &'static str {
                self.as_str()
            }
        }
    };
}
pub(super) use words;

/// An enumeration that is read by its words.
pub(super) trait Words: Copy + 'static {
    const VALUES: &'static [Self];

    fn word(self) -> &'static str;
}

/// The value of a word.
pub(super) fn from_word<W: Words>(word: &str) -> Option<W> {
    W::VALUES.iter().copied().find(|value| value.word() == word)
}
