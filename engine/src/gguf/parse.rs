//! From bytes to a checked header, metadata and tensor table.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt::{self, Display};

use super::cursor::Cursor;
use super::{Problem, StoredType, TensorInfo, Value, ValueType};

/// What a file holds, apart from the numbers themselves.
pub(super) struct Contents {
    pub(super) alignment: u64,
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: Vec<TensorInfo>,
}

const VERSION: u32 = 3;

/// A key of no bytes, its value's type and a one-byte value.
const LEAST_METADATA_BYTES: u64 = 8 + 4 + 1;

/// A name of no bytes, the number of dimensions, one dimension, type and offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// Where in the file a problem is, for messages.
enum Place<'a> {
    Header(&'static str),
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(what) => write!(f, "the {what}"),
            Self::Key(i) => write!(f, "the name of metadata entry {i}"),
            Self::Value(key) => write!(f, "the value of key {key:?}"),
            Self::TensorName(i) => write!(f, "the name of tensor {i}"),
            Self::Tensor(name) => write!(f, "the entry of tensor {name:?}"),
        }
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<Contents, Problem> {
    if !bytes.starts_with(b"GGUF") {
        return Err(Problem::Magic { found: bytes[..bytes.len().min(4)].to_vec() });
    }
    let mut cursor = Cursor::new(bytes);
    cursor.range(4, &Place::Header("magic"))?;
    match cursor.u32(&Place::Header("version"))? {
        VERSION => {}
        found if found.swap_bytes() == VERSION => return Err(Problem::BigEndian),
        found => return Err(Problem::Version { found }),
    }
    let tensor_count = cursor.count(LEAST_TENSOR_BYTES, &Place::Header("tensor table"))?;
    let metadata_count = cursor.count(LEAST_METADATA_BYTES, &Place::Header("metadata"))?;

    let mut metadata = BTreeMap::new();
    for i in 0..metadata_count {
        let key = cursor.string(&Place::Key(i))?;
        let value = read_value(&mut cursor, bytes, key)?;
        match metadata.entry(key.to_owned()) {
            btree_map::Entry::Vacant(entry) => entry.insert(value),
            btree_map::Entry::Occupied(_) => return Err(Problem::DuplicateKey { key: key.to_owned() }),
        };
    }
    let alignment = alignment(metadata.get("general.alignment"))?;

    let mut entries = Vec::new();
    for i in 0..tensor_count {
        entries.push(read_entry(&mut cursor, alignment, i)?);
    }
    let data = (cursor.at() as u128).next_multiple_of(u128::from(alignment));
    let tensors = entries.into_iter().map(|entry| place(entry, data, bytes.len())).collect::<Result<Vec<_>, _>>()?;
    Ok(Contents { alignment, metadata, tensors: apart(tensors)? })
}

fn read_value(cursor: &mut Cursor<'_>, bytes: &[u8], key: &str) -> Result<Value, Problem> {
    let place = Place::Value(key);
    let ty = read_type(cursor, key)?;
    match ty {
        ValueType::String => {
            let len = cursor.string(&place)?.len();
            Ok(Value::String(cursor.at() - len..cursor.at()))
        }
        ValueType::Array => {
            let element = read_type(cursor, key)?;
            if element == ValueType::Array {
                return Err(Problem::NestedArray { key: key.to_owned() });
            }
            let least = element.least_bytes() as u64;
            let count = cursor.count(least, &place)?;
            let start = cursor.at();
            if element == ValueType::String {
                for _ in 0..count {
                    cursor.string(&place)?;
                }
            } else {
                // `count` has checked that the product is not larger than the file.
                cursor.range(count * least, &place)?;
            }
            Ok(Value::Array { element, count: count as usize, bytes: start..cursor.at() })
        }
        _ => {
            let range = cursor.range(ty.least_bytes() as u64, &place)?;
            let value = &bytes[range];
            if ty == ValueType::Bool && value[0] > 1 {
                return Err(Problem::Bool { key: key.to_owned(), found: value[0] });
            }
            Value::scalar(ty, value).ok_or_else(|| Problem::ValueType { key: key.to_owned(), found: ty as u32 })
        }
    }
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, Problem> {
    let found = cursor.u32(&Place::Value(key))?;
    ValueType::from_id(found).ok_or_else(|| Problem::ValueType { key: key.to_owned(), found })
}

fn alignment(value: Option<&Value>) -> Result<u64, Problem> {
    match value {
        None => Ok(32),
        Some(Value::Integer(_, v)) if (1..=65536).contains(v) && v.count_ones() == 1 => Ok(*v as u64),
        Some(other) => Err(Problem::Alignment { found: other.to_string() }),
    }
}

/// A tensor's entry whose place is relative to the data yet.
struct Entry {
    name: String,
    dims: [u64; 4],
    ty: StoredType,
    /// Bytes, 0 where the type's block size is unknown.
    len: u128,
    offset: u64,
}

fn read_entry(cursor: &mut Cursor<'_>, alignment: u64, i: u64) -> Result<Entry, Problem> {
    let name = cursor.string(&Place::TensorName(i))?;
    let tensor = || name.to_owned();
    let place = Place::Tensor(name);
    let dimensions = cursor.u32(&place)?;
    let mut dims = [1; 4];
    let Some(used) = dims.get_mut(..dimensions as usize).filter(|used| !used.is_empty()) else {
        return Err(Problem::Dimensions { tensor: tensor(), found: dimensions });
    };
    for dim in used {
        *dim = cursor.u64(&place)?;
    }
    let elements = dims.iter().try_fold(1_u64, |product, &d| product.checked_mul(d));
    let Some(elements) = elements.filter(|&n| n > 0 && n <= i64::MAX as u64) else {
        return Err(Problem::Shape { tensor: tensor(), dims: dims.to_vec() });
    };
    let id = cursor.u32(&place)?;
    let ty = StoredType::from_ggml_id(id).ok_or_else(|| Problem::TensorType { tensor: tensor(), found: id })?;
    let len = match ty {
        StoredType::Known(ty) => {
            let block = ty.block_elements();
            if dims[0] % block as u64 != 0 {
                return Err(Problem::Blocks { tensor: tensor(), ty: ty.name(), found: dims[0], block });
            }
            u128::from(elements) / block as u128 * ty.block_bytes() as u128
        }
        StoredType::Other(_) => 0,
    };
    let offset = cursor.u64(&place)?;
    if offset % alignment != 0 {
        return Err(Problem::Offset { tensor: tensor(), found: offset, alignment });
    }
    Ok(Entry { name: tensor(), dims, ty, len, offset })
}

/// Finds an entry's bytes in the file, whose data begin at byte `data`.
fn place(entry: Entry, data: u128, file_len: usize) -> Result<TensorInfo, Problem> {
    let Entry { name, dims, ty, len, offset } = entry;
    let start = data + u128::from(offset);
    let end = start + len;
    if end > file_len as u128 {
        return Err(Problem::Outside { tensor: name, start, end, len: file_len });
    }
    Ok(TensorInfo { name, dims, ty, bytes: start as usize..end as usize })
}

/// Checks that no two tensors share a byte or a name, and sorts them by name.
fn apart(mut tensors: Vec<TensorInfo>) -> Result<Vec<TensorInfo>, Problem> {
    tensors.sort_unstable_by_key(|t| (t.bytes.start, t.bytes.end));
    for pair in tensors.windows(2) {
        if pair[1].bytes.start < pair[0].bytes.end {
            let at = pair[1].bytes.start;
            return Err(Problem::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone(), at });
        }
    }
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    match tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(Problem::DuplicateTensor { tensor: pair[0].name.clone() }),
        None => Ok(tensors),
    }
}
