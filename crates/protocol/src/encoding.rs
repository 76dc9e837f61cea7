//! The encoding of payloads: the last byte of a payload gives its kind, and one payload may consist of several parts.

/// Last byte of a payload that is a call in JSON. Python workers recognise it.
pub const JSON_CALL: u8 = 5;
/// Last byte of a payload that is a result in JSON. Python workers recognise it.
pub const JSON_RESULT: u8 = 4;
/// Last byte of a [joined](join) payload that contains a call and the results of its dependencies.
pub const CALL_WITH_RESULTS: u8 = 6;
/// Last byte of a [joined](join) payload that contains a call and, as JSON, the rank's invitation to its group.
pub const CALL_OF_RANK: u8 = 7;
/// Last byte of a [joined](join) payload that contains the results of all ranks, in order.
pub const RANK_RESULTS: u8 = 5;
/// Last byte of the part that follows the results in a [`CALL_WITH_RESULTS`] with
/// [foreign](crate::tasks::TaskOutcome::foreign) results. For each result the part lists, as JSON, the names of the
/// tenants that may have produced it.
pub const RESULT_PRODUCERS: u8 = 8;
/// Alignment of the parts of a payload, so that aligned data in a part stays aligned.
const PART_ALIGN: usize = 64;

/// Joins several payloads into one. Layout: the parts, each at a multiple of 64 bytes; offset and length of each part
/// (two little-endian u64); the number of parts (u32); and as the last byte `what`, which is [`CALL_WITH_RESULTS`],
/// [`CALL_OF_RANK`] or [`RANK_RESULTS`].
pub fn join(parts: &[&[u8]], what: u8) -> Vec<u8> {
    let bytes: usize = parts.iter().map(|part| part.len() + PART_ALIGN + 16).sum();
    let mut joined = Vec::with_capacity(bytes + 5);
    let mut table = Vec::with_capacity(16 * parts.len());
    for part in parts {
        joined.resize(joined.len().next_multiple_of(PART_ALIGN), 0);
        for word in [joined.len(), part.len()] {
            table.extend_from_slice(&(word as u64).to_le_bytes());
        }
        joined.extend_from_slice(part);
    }
    joined.extend_from_slice(&table);
    joined.extend_from_slice(&(parts.len() as u32).to_le_bytes());
    joined.push(what);
    joined
}

/// Returns the parts of a payload made by [`join`], of any kind, or `None` if it is malformed.
pub fn parts(joined: &[u8]) -> Option<Vec<&[u8]>> {
    let (_, rest) = joined.split_last()?;
    let (rest, count) = rest.split_last_chunk::<4>()?;
    let table = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(16)?;
    let (rest, table) = rest.split_at_checked(rest.len().checked_sub(table)?)?;
    let word = |bytes: &[u8]| {
        let exact = <[u8; 8]>::try_from(bytes).ok()?;
        usize::try_from(u64::from_le_bytes(exact)).ok()
    };
    let part = |entry: &[u8]| {
        let (start, length) = (word(&entry[..8])?, word(&entry[8..])?);
        rest.get(start..start.checked_add(length)?)
    };
    table.chunks_exact(16).map(part).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn joined_parts_are_restored_and_aligned(
            given in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6),
        ) {
            let given: Vec<&[u8]> = given.iter().map(Vec::as_slice).collect();
            let joined = join(&given, CALL_WITH_RESULTS);
            let found = parts(&joined).unwrap();
            prop_assert_eq!(&found, &given);
            for part in found {
                prop_assert_eq!((part.as_ptr() as usize - joined.as_ptr() as usize) % PART_ALIGN, 0);
            }
        }

        #[test]
        fn malformed_joined_payload_is_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            bytes.push(CALL_WITH_RESULTS);
            // No input makes the parser read outside the payload.
            let _ = parts(&bytes);
        }
    }
}
