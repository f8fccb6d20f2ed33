//! Metadata values and how they are asked for.

use std::fmt;
use std::ops::Range;

/// Type of a metadata value, in the order of the format's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the format's own names")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type with this number in files.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        use ValueType::{Array, Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of a value; for strings the least that one takes, its length.
    pub(super) const fn least_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// A metadata value. Strings and arrays stay in the file; their bytes have been checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer and its type in the file.
    Integer(ValueType, i128),
    /// A floating-point number and its type in the file.
    Float(ValueType, f64),
    /// A bool.
    Bool(bool),
    /// A string's bytes.
    String(Range<usize>),
    /// Elements of one type, none of them arrays.
    Array {
        /// Their type.
        element: ValueType,
        /// How many.
        count: usize,
        /// Their bytes.
        bytes: Range<usize>,
    },
}

impl Value {
    /// Reads a number or bool; `None` if `bytes` is not one of type `ty`.
    pub(super) fn scalar(ty: ValueType, bytes: &[u8]) -> Option<Self> {
        let float = |v: f64| Some(Self::Float(ty, v));
        let integer = |v: i128| Some(Self::Integer(ty, v));
        match ty {
            ValueType::U8 => integer(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I8 => integer(i8::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::U16 => integer(u16::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I16 => integer(i16::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::U32 => integer(u32::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I32 => integer(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::U64 => integer(u64::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I64 => integer(i64::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::F32 => float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::F64 => float(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => Some(Self::Bool(*bytes.first()? != 0)),
            ValueType::String | ValueType::Array => None,
        }
    }
}

impl fmt::Display for Value {
    /// Type and, where it is short, value: what a message says was found.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(ty, v) => write!(f, "{ty} {v}"),
            Self::Float(ty, v) => write!(f, "{ty} {v}"),
            Self::Bool(v) => write!(f, "bool {v}"),
            Self::String(bytes) => write!(f, "a string of {} bytes", bytes.len()),
            Self::Array { element, count, .. } => write!(f, "an array of {count} {element}"),
        }
    }
}

/// What a metadata value can be read as.
pub trait FromValue<'a>: Sized {
    /// The type for people.
    fn expected() -> String;

    /// The value as this type, `None` if it is of another or out of range. `file` is the whole file.
    fn from_value(value: &Value, file: &'a [u8]) -> Option<Self>;
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl<'a> FromValue<'a> for $ty {
            fn expected() -> String {
                format!("an integer from {} to {}", Self::MIN, Self::MAX)
            }

            fn from_value(value: &Value, _: &'a [u8]) -> Option<Self> {
                match value {
                    Value::Integer(_, v) => (*v).try_into().ok(),
                    _ => None,
                }
            }
        }
    )*};
}

integers!(u8, i8, u16, i16, u32, i32, u64, i64, usize);

impl<'a> FromValue<'a> for f32 {
    fn expected() -> String {
        "an f32".into()
    }

    fn from_value(value: &Value, _: &'a [u8]) -> Option<Self> {
        match value {
            Value::Float(_, v) => Some(*v as Self),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for bool {
    fn expected() -> String {
        "a bool".into()
    }

    fn from_value(value: &Value, _: &'a [u8]) -> Option<Self> {
        match value {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    fn expected() -> String {
        "a string".into()
    }

    fn from_value(value: &Value, file: &'a [u8]) -> Option<Self> {
        match value {
            Value::String(range) => std::str::from_utf8(file.get(range.clone())?).ok(),
            _ => None,
        }
    }
}

impl<'a, T: FromValue<'a>> FromValue<'a> for Vec<T> {
    fn expected() -> String {
        format!("an array, each element {}", T::expected())
    }

    fn from_value(value: &Value, file: &'a [u8]) -> Option<Self> {
        let Value::Array { element, count, bytes } = value else { return None };
        let mut at = bytes.start;
        let mut elements = Vec::with_capacity(*count);
        for _ in 0..*count {
            let value = if *element == ValueType::String {
                let len = u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?) as usize;
                at += 8;
                Value::String(at..at.checked_add(len)?)
            } else {
                Value::scalar(*element, file.get(at..at + element.least_bytes())?)?
            };
            at += match &value {
                Value::String(range) => range.len(),
                _ => element.least_bytes(),
            };
            elements.push(T::from_value(&value, file)?);
        }
        Some(elements)
    }
}
