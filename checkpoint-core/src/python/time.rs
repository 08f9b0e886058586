//! Dates, times and durations.

use std::fmt;

use chrono::{Datelike, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeZone, Timelike};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer, ser};

use super::Object;
use crate::serde::from_msgpack;
use crate::{Error, Result, Value};

/// A point in time (`datetime.datetime`) as ISO text, with an offset or without (naive).
///
/// The text is preserved unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DateTime(String);

impl DateTime {
    const CLASS: &str = "py:3:datetime:datetime";

    /// Checks an ISO text such as `2026-01-02T03:04:05.678901+00:00`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for text that is no date and time.
    pub fn parse(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        match parse(&text) {
            Some(_) => Ok(Self(text)),
            None => Err(Error::invalid_argument("the text is no ISO date and time")),
        }
    }

    /// The ISO text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The point in time, if there is an offset.
    pub fn to_chrono(&self) -> Option<chrono::DateTime<FixedOffset>> {
        let (naive, offset) = parse(&self.0)?;
        naive.and_local_timezone(offset?).single()
    }

    /// The local date and time, without the offset.
    pub fn to_naive(&self) -> Option<NaiveDateTime> {
        Some(parse(&self.0)?.0)
    }
}

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Truncated to microseconds, Python's resolution.
impl<Tz: TimeZone> From<chrono::DateTime<Tz>> for DateTime {
    fn from(time: chrono::DateTime<Tz>) -> Self {
        let offset = time.offset().fix();
        // At the limits of chrono's range there is no local time.
        let local = time.naive_utc().checked_add_offset(offset).unwrap_or_else(|| time.naive_utc());
        Self(iso(local) + &iso_offset(offset.local_minus_utc()))
    }
}

/// Truncated to microseconds, Python's resolution.
impl From<NaiveDateTime> for DateTime {
    fn from(time: NaiveDateTime) -> Self {
        Self(iso(time))
    }
}

impl Serialize for DateTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Only conversions from chrono can have such years.
        if self.0.find('-') != Some(4) || self.0.starts_with("0000") {
            return Err(ser::Error::custom(YEAR_RANGE));
        }
        serializer.serialize_newtype_struct(Self::CLASS, &self.0)
    }
}

const YEAR_RANGE: &str = "Python supports only the years 1 to 9999";

impl<'de> Deserialize<'de> for DateTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = DateTime;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a date and time")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<DateTime, D::Error> {
                deserializer.deserialize_str(self)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<DateTime, E> {
                DateTime::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_newtype_struct(Self::CLASS, TextVisitor)
    }
}

fn iso(time: NaiveDateTime) -> String {
    let date = time.date();
    format!("{:04}-{:02}-{:02}T{}", date.year(), date.month(), date.day(), iso_time(time.time()))
}

fn iso_time(time: NaiveTime) -> String {
    let plain = format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
    match microsecond(time) {
        0 => plain,
        fraction => format!("{plain}.{fraction:06}"),
    }
}

/// Python has no leap seconds: one becomes the last microsecond of the second before.
fn microsecond(time: NaiveTime) -> u32 {
    (time.nanosecond() / 1000).min(999_999)
}

fn iso_offset(seconds: i32) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let seconds = seconds.unsigned_abs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match rest {
        0 => format!("{sign}{hours:02}:{minutes:02}"),
        rest => format!("{sign}{hours:02}:{minutes:02}:{rest:02}"),
    }
}

/// Parses date, time and offset of an ISO text; fractions of a second in the offset are ignored.
fn parse(text: &str) -> Option<(NaiveDateTime, Option<FixedOffset>)> {
    let (date, rest) = text.split_at_checked(10)?;
    let date = NaiveDate::parse_from_str(date, "%Y-%m-%d").ok()?;
    let rest = rest.strip_prefix(['T', ' '])?;
    let (time, offset) = match rest.find(['+', '-', 'Z']) {
        Some(at) => rest.split_at_checked(at).map(|(time, offset)| (time, Some(offset)))?,
        None => (rest, None),
    };
    let offset = match offset {
        None => None,
        Some("Z") => FixedOffset::east_opt(0),
        Some(offset) => Some(parse_offset(offset)?),
    };
    Some((date.and_time(parse_time(time)?), offset))
}

fn parse_time(text: &str) -> Option<NaiveTime> {
    NaiveTime::parse_from_str(text, "%H:%M:%S%.f").or_else(|_| NaiveTime::parse_from_str(text, "%H:%M")).ok()
}

fn parse_offset(text: &str) -> Option<FixedOffset> {
    let time = parse_time(text.strip_prefix(['+', '-'])?)?;
    let seconds = i32::try_from(time.num_seconds_from_midnight()).ok()?;
    if text.starts_with('-') { FixedOffset::west_opt(seconds) } else { FixedOffset::east_opt(seconds) }
}

/// A date (`datetime.date`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(pub NaiveDate);

impl Date {
    const CLASS: &str = "py:1:datetime:date";
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.0.year(), self.0.month(), self.0.day())
    }
}

impl From<NaiveDate> for Date {
    fn from(date: NaiveDate) -> Self {
        Self(date)
    }
}

impl Serialize for Date {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !(1..=9999).contains(&self.0.year()) {
            return Err(ser::Error::custom(YEAR_RANGE));
        }
        let parts = (self.0.year(), self.0.month(), self.0.day());
        serializer.serialize_newtype_struct(Self::CLASS, &parts)
    }
}

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DateVisitor;
        impl<'de> Visitor<'de> for DateVisitor {
            type Value = Date;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("year, month and day")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Date, D::Error> {
                deserializer.deserialize_any(self)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Date, E> {
                NaiveDate::parse_from_str(text, "%Y-%m-%d")
                    .map(Date)
                    .map_err(|_| E::custom("the text is no ISO date"))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Date, A::Error> {
                let mut part =
                    || parts.next_element::<u32>()?.ok_or_else(|| de::Error::invalid_length(0, &self));
                let (year, month, day) = (part()?, part()?, part()?);
                i32::try_from(year)
                    .ok()
                    .and_then(|year| NaiveDate::from_ymd_opt(year, month, day))
                    .map(Date)
                    .ok_or_else(|| de::Error::custom("there is no such day"))
            }
        }
        deserializer.deserialize_newtype_struct(Self::CLASS, DateVisitor)
    }
}

/// A time of day (`datetime.time`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename = "py:2:datetime:time", default)]
pub struct Time {
    /// The hour, 0 to 23.
    pub hour: u32,
    /// The minute.
    pub minute: u32,
    /// The second.
    pub second: u32,
    /// The microsecond.
    pub microsecond: u32,
    /// The time zone object, or nil.
    pub tzinfo: Value,
    /// Distinguishes the two occurrences of a time at the end of daylight saving time, 0 or 1.
    pub fold: u8,
}

impl Time {
    /// The time without its zone; `None` if there is no such time.
    pub fn to_naive(&self) -> Option<NaiveTime> {
        NaiveTime::from_hms_micro_opt(self.hour, self.minute, self.second, self.microsecond)
    }
}

impl From<NaiveTime> for Time {
    fn from(time: NaiveTime) -> Self {
        Self {
            hour: time.hour(),
            minute: time.minute(),
            second: time.second(),
            microsecond: microsecond(time),
            ..Self::default()
        }
    }
}

/// The ISO text, with the time zone only if it is a fixed offset.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second)?;
        if self.microsecond != 0 {
            write!(f, ".{:06}", self.microsecond)?;
        }
        let zone = Object::from_value(&self.tzinfo).filter(|zone| zone.is("datetime", "timezone"));
        let offset =
            zone.and_then(|zone| TimeDelta::from_value(zone.contents.as_array()?.first()?)?.whole_seconds());
        match offset.and_then(|seconds| i32::try_from(seconds).ok()) {
            Some(seconds) => f.write_str(&iso_offset(seconds)),
            None => Ok(()),
        }
    }
}

/// A duration (`datetime.timedelta`); as in Python only the days may be negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Span", into = "Span")]
pub struct TimeDelta {
    /// Days, negative for a negative duration.
    pub days: i64,
    /// Seconds, 0 to 86,399.
    pub seconds: i64,
    /// Microseconds, 0 to 999,999.
    pub microseconds: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "py:1:datetime:timedelta")]
struct Span(i64, i64, i64);

impl From<Span> for TimeDelta {
    fn from(Span(days, seconds, microseconds): Span) -> Self {
        Self { days, seconds, microseconds }
    }
}

impl From<TimeDelta> for Span {
    fn from(span: TimeDelta) -> Self {
        Self(span.days, span.seconds, span.microseconds)
    }
}

impl TimeDelta {
    /// The duration, unless it exceeds chrono's range.
    pub fn to_chrono(&self) -> Option<chrono::TimeDelta> {
        let micros = chrono::TimeDelta::microseconds(self.microseconds);
        chrono::TimeDelta::try_seconds(self.whole_seconds()?)?.checked_add(&micros)
    }

    fn whole_seconds(&self) -> Option<i64> {
        self.days.checked_mul(86_400)?.checked_add(self.seconds)
    }

    fn from_value(value: &Value) -> Option<Self> {
        from_msgpack(&value.to_msgpack().ok()?).ok()
    }
}

/// Truncated to microseconds, Python's resolution.
impl From<chrono::TimeDelta> for TimeDelta {
    fn from(span: chrono::TimeDelta) -> Self {
        let micros = i64::from(span.subsec_nanos()).div_euclid(1000);
        // Negative microseconds borrow from the seconds, and negative seconds from the days.
        let seconds = span.num_seconds() + micros.div_euclid(1_000_000);
        Self {
            days: seconds.div_euclid(86_400),
            seconds: seconds.rem_euclid(86_400),
            microseconds: micros.rem_euclid(1_000_000),
        }
    }
}

/// Formats as Python's `str` does, such as `1 day, 0:00:02.000003`.
impl fmt::Display for TimeDelta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days != 0 {
            write!(f, "{} day{}, ", self.days, if self.days.unsigned_abs() == 1 { "" } else { "s" })?;
        }
        write!(f, "{}:{:02}:{:02}", self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60)?;
        if self.microseconds != 0 {
            write!(f, ".{:06}", self.microseconds)?;
        }
        Ok(())
    }
}
