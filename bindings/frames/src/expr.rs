//! Expressions over the columns of a frame.

use dayfly_frame::datafusion::common::{Column, ScalarValue};
use dayfly_frame::datafusion::logical_expr::expr::{AggregateFunction, Case, ScalarFunction, WindowFunction};
use dayfly_frame::datafusion::logical_expr::{Expr as Inner, Operator, binary_expr, cast};
use dayfly_frame::datafusion::prelude::lit;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};

use crate::errors::{ForPython, invalid};
use crate::functions;
use crate::names::{self, output_name};
use crate::types::type_of;

/// An expression. `dayfly_frames.Expr` has its operators.
#[pyclass(frozen, from_py_object, module = "dayfly_frames._frames")]
#[derive(Clone)]
pub struct Expr(Inner);

impl Expr {
    pub fn new(inner: Inner) -> Self {
        Self(inner)
    }

    pub fn inner(&self) -> &Inner {
        &self.0
    }

    pub fn all(exprs: Vec<Self>) -> Vec<Inner> {
        exprs.into_iter().map(|expr| expr.0).collect()
    }
}

fn operator(name: &str) -> Option<Operator> {
    Some(match name {
        "+" => Operator::Plus,
        "-" => Operator::Minus,
        "*" => Operator::Multiply,
        "/" => Operator::Divide,
        "%" => Operator::Modulo,
        "==" => Operator::Eq,
        "!=" => Operator::NotEq,
        "<" => Operator::Lt,
        "<=" => Operator::LtEq,
        ">" => Operator::Gt,
        ">=" => Operator::GtEq,
        "&" => Operator::And,
        "|" => Operator::Or,
        _ => return None,
    })
}

fn scalar_of(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    if value.is_none() {
        return Ok(ScalarValue::Null);
    }
    // A bool is an int, too.
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(ScalarValue::Boolean(Some(value.is_true())));
    }
    if value.is_instance_of::<PyInt>() {
        if let Ok(number) = value.extract::<i64>() {
            return Ok(ScalarValue::Int64(Some(number)));
        }
        let number = value
            .extract::<u64>()
            .map_err(|_| PyOverflowError::new_err("an integer beyond 64 bits is no value of a column"))?;
        return Ok(ScalarValue::UInt64(Some(number)));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(ScalarValue::Float64(Some(value.extract()?)));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(ScalarValue::Utf8(Some(value.extract()?)));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(ScalarValue::Binary(Some(bytes.as_bytes().to_vec())));
    }
    Err(PyTypeError::new_err(format!(
        "a value of type {} is no value of a column",
        value.get_type().name()?
    )))
}

#[pymethods]
impl Expr {
    #[staticmethod]
    fn column(name: &str) -> Self {
        Self(Inner::Column(Column::new_unqualified(name)))
    }

    /// None, a bool, int, float, str or bytes.
    #[staticmethod]
    fn literal(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(lit(scalar_of(value)?)))
    }

    /// A date, in days since 1970.
    #[staticmethod]
    fn date(days: i32) -> Self {
        Self(lit(ScalarValue::Date32(Some(days))))
    }

    /// A time, in microseconds since 1970.
    #[staticmethod]
    fn timestamp(microseconds: i64, zone: Option<String>) -> Self {
        Self(lit(ScalarValue::TimestampMicrosecond(
            Some(microseconds),
            zone.map(Into::into),
        )))
    }

    /// A duration, in microseconds.
    #[staticmethod]
    fn duration(microseconds: i64) -> Self {
        Self(lit(ScalarValue::DurationMicrosecond(Some(microseconds))))
    }

    /// A decimal number: its digits as an integer, and how many of them follow the point.
    #[staticmethod]
    fn decimal(digits: i128, precision: u8, scale: i8) -> PyResult<Self> {
        if !(1..=38).contains(&precision) {
            return Err(PyOverflowError::new_err("a decimal number has at most 38 digits"));
        }
        Ok(Self(lit(ScalarValue::Decimal128(Some(digits), precision, scale))))
    }

    /// The number of rows.
    #[staticmethod]
    fn count_rows() -> Self {
        Self(dayfly_frame::datafusion::functions_aggregate::count::count_all().unalias())
    }

    /// A function of each row, by DataFusion's name.
    #[staticmethod]
    fn call(name: &str, args: Vec<Self>) -> PyResult<Self> {
        let function = functions::scalar(name).ok_or_else(|| PyValueError::new_err(format!("no function {name:?}")))?;
        Ok(Self(Inner::ScalarFunction(ScalarFunction::new_udf(
            function,
            Self::all(args),
        ))))
    }

    /// A function of many rows, by DataFusion's name.
    #[staticmethod]
    fn aggregate(name: &str, args: Vec<Self>, distinct: bool) -> PyResult<Self> {
        let function =
            functions::aggregate(name).ok_or_else(|| PyValueError::new_err(format!("no aggregate {name:?}")))?;
        let aggregate = AggregateFunction::new_udf(function, Self::all(args), distinct, None, vec![], None);
        Ok(Self(Inner::AggregateFunction(aggregate)))
    }

    /// A window function, by DataFusion's name.
    #[staticmethod]
    fn window(name: &str, args: Vec<Self>) -> PyResult<Self> {
        let function = functions::window(name).ok_or_else(|| PyValueError::new_err(format!("no function {name:?}")))?;
        Ok(Self(WindowFunction::new(function, Self::all(args)).into()))
    }

    #[staticmethod]
    fn case(branches: Vec<(Self, Self)>, otherwise: Option<Self>) -> Self {
        let branches = branches
            .into_iter()
            .map(|(when, then)| (Box::new(when.0), Box::new(then.0)));
        let otherwise = otherwise.map(|expr| Box::new(expr.0));
        Self(Inner::Case(Case::new(None, branches.collect(), otherwise)))
    }

    fn binary(&self, name: &str, right: &Self) -> PyResult<Self> {
        let operator = operator(name).ok_or_else(|| PyValueError::new_err(format!("no operator {name:?}")))?;
        Ok(Self(binary_expr(self.0.clone(), operator, right.0.clone())))
    }

    fn negate(&self) -> Self {
        Self(Inner::Negative(Box::new(self.0.clone())))
    }

    fn invert(&self) -> Self {
        Self(Inner::Not(Box::new(self.0.clone())))
    }

    fn is_null(&self) -> Self {
        Self(self.0.clone().is_null())
    }

    fn is_not_null(&self) -> Self {
        Self(self.0.clone().is_not_null())
    }

    fn is_in(&self, values: Vec<Self>) -> Self {
        Self(self.0.clone().in_list(Self::all(values), false))
    }

    fn cast(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        let kind =
            type_of(name).ok_or_else(|| invalid(py, format!("{name:?} is no type of a column; see Expr.cast")))?;
        Ok(Self(cast(self.0.clone(), kind)))
    }

    fn alias(&self, name: &str) -> Self {
        Self(self.0.clone().unalias().alias(name))
    }

    /// Over a window. Of each key of its order: whether it descends.
    fn over(&self, py: Python<'_>, partition_by: Vec<Self>, order_by: Vec<(Self, bool)>) -> PyResult<Self> {
        if !names::has_aggregate(&self.0) && !names::has_window(&self.0) {
            let message = "over() needs an aggregate, such as col(\"fare\").mean().over(\"zone\")";
            return Err(invalid(py, message));
        }
        // Nulls come last in both directions.
        let order_by = order_by.into_iter();
        let order_by: Vec<_> = order_by
            .map(|(key, descending)| key.0.sort(!descending, false))
            .collect();
        let over = names::over(self.0.clone(), &Self::all(partition_by), &order_by);
        Ok(Self(over.for_python(py)?))
    }

    fn name(&self) -> String {
        output_name(&self.0)
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}
