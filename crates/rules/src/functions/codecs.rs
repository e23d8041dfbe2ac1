//! Functions of bytes: encodings, bits, hashes and identifiers.

use base64ct::{Base64, Base64Unpadded, Encoding};
use md5::{Digest, Md5};
use sha2::Sha256;

use super::Arguments;
use crate::error::EvalError;
use crate::meter::Meter;
use crate::value::Value;

pub fn base64_encode(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let bytes = it.bytes(0)?;
    meter.produce(bytes.len().div_ceil(3).saturating_mul(4))?;
    Ok(Value::from(Base64::encode_string(bytes)))
}

/// `base64_decode(text)`: with or without `=` at the end.
pub fn base64_decode(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let text = it.text(0)?;
    meter.produce(text.len())?;
    let decoded = Base64::decode_vec(text).or_else(|_| Base64Unpadded::decode_vec(text));
    decoded.map(|bytes| Value::of_bytes(&bytes)).map_err(|_| it.wrong(0, "Base64"))
}

pub fn hexstr2bin(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let text = it.text(0)?;
    meter.read(text.len().saturating_mul(8))?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs.iter().map(pair).collect();
    match bytes {
        Some(bytes) if rest.is_empty() => meter.of_bytes(&bytes),
        _ => Err(it.wrong(0, "an even number of hexadecimal digits")),
    }
}

pub fn bin2hexstr(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let bytes = it.bytes(0)?;
    meter.produce(bytes.len().saturating_mul(2))?;
    meter.read(bytes.len().saturating_mul(8))?;
    Ok(Value::from(hexadecimal(bytes, b"0123456789ABCDEF")))
}

fn hexadecimal(bytes: &[u8], digits: &[u8; 16]) -> String {
    let digit = |nibble: u8| char::from(digits[usize::from(nibble & 0xF)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// `md5(x)`: the hash in lower case hexadecimal digits.
pub fn md5(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let bytes = it.bytes(0)?;
    meter.step(bytes.len() / HASH_STEP)?;
    meter.text(&hexadecimal(&Md5::digest(bytes), b"0123456789abcdef"))
}

/// `sha256(x)`: the hash in lower case hexadecimal digits.
pub fn sha256(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let bytes = it.bytes(0)?;
    meter.step(bytes.len() / HASH_STEP)?;
    meter.text(&hexadecimal(&Sha256::digest(bytes), b"0123456789abcdef"))
}

/// Bytes that are hashed in one step.
const HASH_STEP: usize = 16;

/// `uuid_v4()`: from the random number of the evaluation. Several ones of one evaluation differ.
pub fn uuid_v4(meter: &mut Meter, _: &Arguments<'_>) -> Result<Value, EvalError> {
    let count = meter.next_uuid().wrapping_mul(random::STEP);
    let seed = meter.context.random;
    // `mix` is a bijection, so no randomness is lost.
    let half = |seed: u64| u128::from(random::mix(seed.wrapping_add(count)));
    let mixed = half((seed >> 64) as u64) << 64 | half(seed as u64);
    let bits = mixed & !(0xF << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{bits:032x}");
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    meter.text(&parts.join("-"))
}

/// Type of the result of `subbits`.
#[derive(Clone, Copy)]
enum Bits {
    Integer,
    Float,
    Bytes,
}

/// `subbits(bytes, length)`, `subbits(bytes, start, length)`, `subbits(bytes, start, length, type, sign, order)`: bits
/// from `start`, which counts from 1. Null when there are fewer bits.
pub fn subbits(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let bytes = it.bytes(0)?;
    let (start, len_at) = if it.len() == 2 { (1, 1) } else { (it.count(1)?, 2) };
    let len = it.count(len_at)?;
    let choices = [("integer", Bits::Integer), ("float", Bits::Float), ("bits", Bits::Bytes)];
    let kind =
        if it.len() > 3 { it.choice(3, &choices, "'integer', 'float' or 'bits'")? } else { Bits::Integer };
    let is_signed =
        it.len() > 4 && it.choice(4, &[("signed", true), ("unsigned", false)], "'signed' or 'unsigned'")?;
    let is_little = it.len() > 5 && it.choice(5, &[("little", true), ("big", false)], "'big' or 'little'")?;

    let Some(before) = start.checked_sub(1) else { return Err(it.wrong(1, "1 or more")) };
    let is_length = match kind {
        Bits::Integer => (1..=64).contains(&len) && (!is_little || len % 8 == 0),
        Bits::Float => len == 32 || len == 64,
        Bits::Bytes => len > 0 && len % 8 == 0,
    };
    if !is_length {
        let expected = match kind {
            Bits::Integer if is_little => "a multiple of 8 up to 64",
            Bits::Integer => "1 to 64",
            Bits::Float => "32 or 64",
            Bits::Bytes => "a multiple of 8",
        };
        return Err(it.wrong(len_at, expected));
    }
    if before.checked_add(len).is_none_or(|end| end.div_ceil(8) > bytes.len()) {
        return Ok(Value::Null);
    }
    meter.step(len.div_ceil(8))?;
    if let Bits::Bytes = kind {
        let mut out: Vec<u8> = (0..len / 8).map(|at| unsigned(bytes, before + at * 8, 8) as u8).collect();
        if is_little {
            out.reverse();
        }
        return meter.of_bytes(&out);
    }
    let mut number = unsigned(bytes, before, len);
    if is_little {
        number = number.swap_bytes() >> (64 - len);
    }
    match kind {
        Bits::Float => {
            let float =
                if len == 32 { f64::from(f32::from_bits(number as u32)) } else { f64::from_bits(number) };
            if !float.is_finite() {
                return Err(EvalError::NotFinite { operation: it.function });
            }
            Ok(Value::Float(float))
        }
        _ if is_signed => Ok(Value::Int((number << (64 - len)) as i64 >> (64 - len))),
        _ => {
            i64::try_from(number).map(Value::Int).map_err(|_| EvalError::Overflow { operation: it.function })
        }
    }
}

/// Up to 64 bits from a position, which counts from 0. The caller has checked that they exist.
fn unsigned(bytes: &[u8], from: usize, len: usize) -> u64 {
    (from..from + len).fold(0, |number, at| {
        let bit = bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
        number << 1 | u64::from(bit)
    })
}
