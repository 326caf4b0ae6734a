//! The length of the plain part of a string: up to a quote, a backslash or a control character.
//!
//! Sixteen bytes at a time with SSE2 (on x86-64), otherwise eight at a time. Tests compare both with a simple loop.

/// The end of the plain bytes from `at` on: the position of the first special byte, or the end.
#[inline]
pub(crate) fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(block) = block_at(bytes, at) {
        if let Some(offset) = special_in(block) {
            return at + offset;
        }
        at += BLOCK;
    }
    words(bytes, at)
}

/// The number of bytes that are checked at once.
pub(super) const BLOCK: usize = if cfg!(target_arch = "x86_64") { 16 } else { 8 };

#[inline]
fn block_at(bytes: &[u8], at: usize) -> Option<&[u8; BLOCK]> {
    bytes.get(at..)?.first_chunk()
}

/// The position of the first special byte of a block.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn special_in(block: &[u8; BLOCK]) -> Option<usize> {
    // SAFETY: SSE2 is part of x86-64.
    #[allow(unsafe_code)]
    let special = unsafe { sse2::special(block) };
    (special != 0).then(|| special.trailing_zeros() as usize)
}

/// The position of the first special byte of a block.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn special_in(block: &[u8; BLOCK]) -> Option<usize> {
    let special = special_bits(u64::from_le_bytes(*block));
    (special != 0).then(|| (special.trailing_zeros() / 8) as usize)
}

/// The portable version, which also handles the remainder shorter than a block.
fn words(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let special = special_bits(u64::from_le_bytes(*word));
        if special != 0 {
            return at + (special.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|byte| !is_special(*byte)) {
        at += 1;
    }
    at
}

const fn is_special(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// The high bit of each special byte. The lowest set bit is exact; those above it may be borrows.
const fn special_bits(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote.wrapping_sub(ONES) & !quote | backslash.wrapping_sub(ONES) & !backslash | control)
        & HIGH_BITS
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x,
        _mm_set1_epi8,
    };

    /// One bit per special byte, the first byte lowest.
    #[inline]
    #[target_feature(enable = "sse2")]
    #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // Bits, not numbers.
    pub(super) fn special(block: &[u8; 16]) -> u32 {
        let both = u128::from_le_bytes(*block);
        let block = _mm_set_epi64x((both >> 64) as i64, both as i64);
        let quote = _mm_cmpeq_epi8(block, _mm_set1_epi8(b'"' as i8));
        let backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8(b'\\' as i8));
        let control = _mm_cmpeq_epi8(_mm_min_epu8(block, _mm_set1_epi8(0x1f)), block);
        _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, backslash), control)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn both_scanners_match_a_simple_loop(
            bytes in proptest::collection::vec(
                proptest::prop_oneof![20 => 0x20u8.., 1 => proptest::num::u8::ANY], 0..80),
            from in 0usize..90,
        ) {
            let rest = bytes.get(from..).unwrap_or_default();
            let plain = rest.iter().position(|b| is_special(*b)).unwrap_or(rest.len());
            proptest::prop_assert_eq!(plain_end(&bytes, from), from + plain);
            proptest::prop_assert_eq!(words(&bytes, from), from + plain);
        }
    }
}
