//! Names of column types.

use dayfly_frame::datafusion::arrow::datatypes::{DataType, IntervalUnit, TimeUnit};

fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

fn unit_of(name: &str) -> Option<TimeUnit> {
    Some(match name {
        "s" => TimeUnit::Second,
        "ms" => TimeUnit::Millisecond,
        "us" => TimeUnit::Microsecond,
        "ns" => TimeUnit::Nanosecond,
        _ => return None,
    })
}

/// The name of a type: that of `cast`, or Arrow's for types that no cast makes.
pub fn type_name(kind: &DataType) -> String {
    match kind {
        DataType::Boolean => "bool".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "binary".into()
        }
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Timestamp(unit, None) => format!("timestamp[{}]", unit_name(*unit)),
        DataType::Timestamp(unit, Some(zone)) => format!("timestamp[{}, {zone}]", unit_name(*unit)),
        DataType::Duration(unit) => format!("duration[{}]", unit_name(*unit)),
        DataType::Interval(IntervalUnit::MonthDayNano) => "interval".into(),
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale) => {
            format!("decimal({digits}, {scale})")
        }
        DataType::Dictionary(_, values) => type_name(values),
        DataType::List(field) | DataType::LargeList(field) => format!("list[{}]", type_name(field.data_type())),
        other => other.to_string().to_lowercase(),
    }
}

/// The type of a name, or `None` if there is none.
pub fn type_of(name: &str) -> Option<DataType> {
    let name = name.trim().to_lowercase();
    if let Some(rest) = name.strip_prefix("timestamp[").and_then(|rest| rest.strip_suffix(']')) {
        let (unit, zone) = rest
            .split_once(',')
            .map_or((rest, None), |(unit, zone)| (unit, Some(zone.trim().to_owned())));
        // Names of time zones have capitals.
        let zone = zone.map(|zone| if zone == "utc" { "UTC".into() } else { zone });
        return Some(DataType::Timestamp(unit_of(unit.trim())?, zone.map(Into::into)));
    }
    if let Some(rest) = name.strip_prefix("duration[").and_then(|rest| rest.strip_suffix(']')) {
        return Some(DataType::Duration(unit_of(rest.trim())?));
    }
    if let Some(rest) = name.strip_prefix("decimal(").and_then(|rest| rest.strip_suffix(')')) {
        let (digits, scale) = rest.split_once(',').unwrap_or((rest, "0"));
        let digits = digits.trim().parse().ok().filter(|digits| (1..=38).contains(digits))?;
        return Some(DataType::Decimal128(digits, scale.trim().parse().ok()?));
    }
    Some(match name.as_str() {
        "bool" | "boolean" => DataType::Boolean,
        "int8" => DataType::Int8,
        "int16" => DataType::Int16,
        "int32" => DataType::Int32,
        "int64" | "int" => DataType::Int64,
        "uint8" => DataType::UInt8,
        "uint16" => DataType::UInt16,
        "uint32" => DataType::UInt32,
        "uint64" => DataType::UInt64,
        "float32" => DataType::Float32,
        "float64" | "float" => DataType::Float64,
        "string" | "str" => DataType::Utf8View,
        "binary" | "bytes" => DataType::BinaryView,
        "date" => DataType::Date32,
        "timestamp" | "datetime" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "duration" | "timedelta" => DataType::Duration(TimeUnit::Microsecond),
        _ => return None,
    })
}
