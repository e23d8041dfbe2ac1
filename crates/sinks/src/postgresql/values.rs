//! Values of records as parameters.

use std::borrow::Cow;
use std::error::Error;

use bytes::{BufMut as _, BytesMut};
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

use crate::Record;

/// Source of the value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// The field of the record with the index of the parameter.
    Field,
    /// The id of the record in the form of a UUID.
    RecordId,
}

/// Value of a parameter of a single execution. The server parses the text by the rules of the type of the parameter;
/// `bytea` gets the bytes as they are.
#[derive(Debug)]
pub struct Single<'a>(Option<Cow<'a, [u8]>>);

/// Values of a parameter of all records of a batch: an array of `text` or `bytea`.
#[derive(Debug)]
pub struct Column<'a> {
    records: &'a [Record],
    index: usize,
    filling: Filling,
}

impl<'a> Single<'a> {
    pub fn new(record: &'a Record, index: usize, filling: Filling) -> Self {
        Self(value(record, index, filling))
    }
}

impl<'a> Column<'a> {
    pub fn new(records: &'a [Record], index: usize, filling: Filling) -> Self {
        Self { records, index, filling }
    }
}

fn value(record: &Record, index: usize, filling: Filling) -> Option<Cow<'_, [u8]>> {
    match filling {
        Filling::Field => record.fields.get(index)?.as_deref().map(Cow::Borrowed),
        Filling::RecordId => Some(Cow::Owned(uuid(record.id).into_bytes())),
    }
}

/// Returns the form of a UUID: 8-4-4-4-12 hexadecimal digits.
fn uuid(id: u128) -> String {
    let digits = format!("{id:032x}");
    let [a, b, c, d, e] = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// Returns whether values of the type are bytes, not text.
pub fn is_bytea(of: &Type) -> bool {
    let mut of = of;
    while let Kind::Domain(base) = of.kind() {
        of = base;
    }
    *of == Type::BYTEA
}

type Encoded = Result<IsNull, Box<dyn Error + Sync + Send>>;

impl ToSql for Single<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Encoded {
        let Some(bytes) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, of: &Type) -> Format {
        if is_bytea(of) { Format::Binary } else { Format::Text }
    }

    to_sql_checked!();
}

impl ToSql for Column<'_> {
    /// Writes the binary form of an array: dimensions, a flag for NULL, the type of the elements; the size and lower
    /// bound of the dimension; elements with their length, which is -1 for NULL.
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Encoded {
        let Kind::Array(element) = of.kind() else { return Err("the parameter is not an array".into()) };
        let (has_null, dimensions, lower_bound) = (1, 1, 1);
        out.put_i32(dimensions);
        out.put_i32(has_null);
        out.put_u32(element.oid());
        out.put_i32(self.records.len().try_into()?);
        out.put_i32(lower_bound);
        for record in self.records {
            match value(record, self.index, self.filling) {
                None => out.put_i32(-1),
                Some(bytes) => {
                    out.put_i32(bytes.len().try_into()?);
                    out.extend_from_slice(&bytes);
                }
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        [Type::TEXT_ARRAY, Type::BYTEA_ARRAY].contains(of)
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let record = |value: Option<&[u8]>, id| Record { fields: vec![value.map(Into::into)], id };
        vec![record(Some(b"{\"a\",'}"), 1), record(None, u128::MAX), record(Some(b""), 0)]
    }

    #[test]
    fn a_column_is_a_binary_array_in_which_nothing_needs_quotes() {
        let records = records();
        let mut out = BytesMut::new();
        let column = Column::new(&records, 0, Filling::Field);
        assert!(matches!(column.to_sql(&Type::TEXT_ARRAY, &mut out), Ok(IsNull::No)));
        let mut expected = Vec::new();
        for number in [1, 1, 25, 3, 1, 7_i32] {
            expected.extend(number.to_be_bytes());
        }
        expected.extend(b"{\"a\",'}");
        expected.extend((-1_i32).to_be_bytes());
        expected.extend(0_i32.to_be_bytes());
        assert_eq!(out, expected);
        assert!(column.to_sql(&Type::TEXT, &mut out).is_err());
    }

    #[test]
    fn only_bytea_is_sent_as_bytes() {
        let records = records();
        let single = Single::new(&records[0], 0, Filling::Field);
        for (of, is_binary) in [(Type::BYTEA, true), (Type::TEXT, false), (Type::JSONB, false)] {
            assert_eq!(matches!(single.encode_format(&of), Format::Binary), is_binary, "{of}");
        }
        let domain = Type::new("d".to_owned(), 1, Kind::Domain(Type::BYTEA), "public".to_owned());
        assert!(is_bytea(&domain));
    }

    #[test]
    fn an_id_has_the_form_of_a_uuid() {
        assert_eq!(uuid(1), "00000000-0000-0000-0000-000000000001");
        assert_eq!(uuid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
