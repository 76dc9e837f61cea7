//! Sizes that the client of a call states in its payload, by which nodes predict what the call needs. Nobody else looks
//! at the arguments. If the last byte of a payload has [`SIZED`], four little-endian `f64` follow its content.

use serde_json::{Map, Value};

use crate::encoding::JSON_CALL;

/// Sizes that a client may state for a call.
pub const MAX_SIZES: usize = 4;
/// Set in the last byte of a call's payload if it states sizes.
pub const SIZED: u8 = 0x40;
/// Bytes of the sizes in a payload.
pub const SIZES_BYTES: usize = 8 * MAX_SIZES;

/// The sizes of one call, 0 for those that are not stated.
pub type Sizes = [f64; MAX_SIZES];

/// Returns the size, or 0 if no argument can have it.
pub fn plausible(size: f64) -> f64 {
    if size.is_finite() && size > 0.0 { size } else { 0.0 }
}

/// Returns the sizes as they are sent.
pub fn to_bytes(sizes: &Sizes) -> [u8; SIZES_BYTES] {
    let mut bytes = [0; SIZES_BYTES];
    for (place, size) in bytes.chunks_exact_mut(8).zip(sizes) {
        place.copy_from_slice(&size.to_le_bytes());
    }
    bytes
}

/// Returns the sizes at this place of a payload; zeros if they are not within it.
pub fn read(payload: &[u8], start: usize) -> Sizes {
    let mut sizes = Sizes::default();
    let Some(bytes) = start.checked_add(SIZES_BYTES).and_then(|end| payload.get(start..end)) else {
        return sizes;
    };
    for (size, bytes) in sizes.iter_mut().zip(bytes.chunks_exact(8)) {
        *size = <[u8; 8]>::try_from(bytes).map_or(0.0, |bytes| plausible(f64::from_le_bytes(bytes)));
    }
    sizes
}

/// Returns the sizes of a payload whose content ends before them; zeros if it states none.
pub fn last_of(payload: &[u8]) -> Sizes {
    match payload.last() {
        Some(last) if last & SIZED != 0 => payload
            .len()
            .checked_sub(SIZES_BYTES + 1)
            .map_or_else(Sizes::default, |start| read(payload, start)),
        _ => Sizes::default(),
    }
}

/// Returns the payload of a call in JSON with the sizes of its arguments: numbers, and the lengths of texts and
/// containers, the first four in order.
pub fn sized_call(text: Vec<u8>, arguments: &[Value], keywords: &Map<String, Value>) -> Vec<u8> {
    let found = arguments.iter().chain(keywords.values()).filter_map(size_of);
    let (mut sizes, mut count) = (Sizes::default(), 0);
    for (place, size) in sizes.iter_mut().zip(found) {
        *place = plausible(size);
        count += 1;
    }
    let mut payload = text;
    if count == 0 {
        payload.push(JSON_CALL);
    } else {
        payload.extend_from_slice(&to_bytes(&sizes));
        payload.push(JSON_CALL | SIZED);
    }
    payload
}

/// Returns the text of a call in JSON, with or without sizes; `None` if the payload is no such call.
pub fn json_call(payload: &[u8]) -> Option<&[u8]> {
    const SIZED_CALL: u8 = JSON_CALL | SIZED;
    match payload.split_last()? {
        (&JSON_CALL, text) => Some(text),
        (&SIZED_CALL, rest) => rest.get(..rest.len().checked_sub(SIZES_BYTES)?),
        _ => None,
    }
}

fn size_of(argument: &Value) -> Option<f64> {
    match argument {
        Value::Null | Value::Bool(_) => None,
        Value::Number(number) => number.as_f64(),
        Value::String(text) => Some(text.chars().count() as f64),
        Value::Array(items) => Some(items.len() as f64),
        Value::Object(members) => Some(members.len() as f64),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn call_in_json_states_sizes_of_arguments() {
        let arguments = [json!(null), json!(-3), json!("grün"), json!([1, 2]), json!(true)];
        let keywords = json!({"level": 2.5, "more": {}});
        let payload = sized_call(b"{}".to_vec(), &arguments, keywords.as_object().unwrap());
        assert_eq!(last_of(&payload), [0.0, 4.0, 2.0, 2.5]);
        assert_eq!(json_call(&payload), Some(&b"{}"[..]));
        let plain = sized_call(b"{}".to_vec(), &[json!(null)], &Map::new());
        assert_eq!((plain.as_slice(), last_of(&plain)), (&b"{}\x05"[..], Sizes::default()));
        assert_eq!(json_call(&plain), Some(&b"{}"[..]));
    }

    #[test]
    fn malformed_payload_states_no_sizes() {
        for length in 0..2 * SIZES_BYTES {
            let mut payload = vec![0xff; length];
            payload.push(SIZED | JSON_CALL);
            assert_eq!(last_of(&payload), Sizes::default(), "no size is NaN");
            assert_eq!(json_call(&payload).is_some(), length >= SIZES_BYTES);
        }
        assert_eq!(json_call(b""), None);
        assert_eq!(read(b"12345678", usize::MAX), Sizes::default());
    }

    #[test]
    fn sizes_are_the_same_after_their_way() {
        let sizes = [1.0, 0.25, 1e300, 0.0];
        assert_eq!(read(&to_bytes(&sizes), 0), sizes);
    }
}
