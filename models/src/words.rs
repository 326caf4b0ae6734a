//! Enumerations that have a word for each value.

/// An enumeration that is read by its words.
pub trait Words: Copy + 'static {
    /// Every value, in the order of the source.
    const VALUES: &'static [Self];
    /// The words of the values.
    const WORDS: &'static [&'static str];

    /// The word of a value.
    fn as_str(self) -> &'static str;

    /// The value of a word.
    fn parse(word: &str) -> Option<Self> {
        let mut values = Self::VALUES.iter().copied();
        values.find(|value| value.as_str() == word)
    }
}

/// Declares enumerations that have a word for each value.
#[macro_export]
macro_rules! words {
    ($(
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$value_doc:meta])* $value:ident = $word:literal,)+
        }
    )+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                $(#[$value_doc])*
                #[doc = concat!("`", $word, "`.")]
                $value,
            )+
        }

        impl $name {
            /// Every value, in the order of the source.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The word, which is stable.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word),+
                }
            }

            /// The value that a word names.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                $crate::words::Words::parse(word)
            }
        }

        impl $crate::words::Words for $name {
            const VALUES: &'static [Self] = Self::ALL;
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn as_str(self) -> &'static str {
                self.as_str()
            }
        }
    )+};
}
